"""Power-of-choice: who is chosen, how candidates are drawn, and the plain mean."""

import numpy as np
import pytest

from fedstale.core import Availability, BadInput
from fedstale.strategies import PowerOfChoice

N = 8
ONES = np.ones(N, np.float32)


def available(losses, weights=ONES / N, t=1):
    return Availability(t, np.arange(N), np.array(losses, np.float32), weights.astype(np.float32), ONES, 0 * ONES)


def test_of_all_candidates_the_largest_losses_train_and_of_equals_the_first():
    chosen, _ = PowerOfChoice(3, N).select(None, available([1, 9, 2, 9, 9, 0, 9, 3]))
    assert chosen.tolist() == [1, 3, 4]


def test_candidates_are_drawn_by_weight_and_again_in_every_round():
    weights = np.array([8, 1, 1, 1, 1, 1, 1, 0]) / 14
    rule, counts = PowerOfChoice(2, 2), np.zeros(N)
    for t in range(1, 2001):
        chosen, _ = rule.select(None, available(np.zeros(N), weights, t))
        assert len({*chosen.tolist()}) == 2
        counts[chosen] += 1
    p_first = 8 / 14 + 6 / 14 * 8 / 13  # first or second draw without repetition
    assert counts[0] / 2000 == pytest.approx(p_first, abs=0.04)
    assert counts[7] == 0
    assert counts[1:7].max() - counts[1:7].min() < 120


def test_the_largest_loss_among_the_candidates_is_preferred():
    often = np.zeros(N)
    for t in range(1, 501):
        chosen, _ = PowerOfChoice(1, 3).select(None, available(np.arange(N), t=t))
        often[chosen] += 1
    assert (np.diff(often) >= -25).all()
    assert often[:2].sum() == 0  # two others are always there


def test_settings_that_make_no_sense_are_refused():
    for settings in ((0, 3), (4, 3), (1, 2, -1)):
        with pytest.raises(BadInput, match="got"):
            PowerOfChoice(*settings)

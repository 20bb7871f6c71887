"""FedExP: its step written out, its limit and the mean of the last two iterates."""

import numpy as np
import pytest
from hypothesis import given, settings

from fedstale.core import BadInput
from fedstale.strategies import FedExP
from tests.strategies.rounds import histories, near, played


@settings(derandomize=True, deadline=None, max_examples=40)
@given(history=histories())
def test_the_step_is_extrapolated_as_the_paper_says(history):
    wanted = []
    for r in history.rounds:
        rows, here = (
            np.where(r.arrived, r.updates, 0).astype(np.float64),
            np.broadcast_to(r.arrived, r.updates.shape),
        )
        a = r.weights[r.clients].astype(np.float64)[:, None]
        weight = (a * here).sum(axis=0)
        mean = np.divide((a * rows).sum(axis=0), weight, out=np.zeros(history.d), where=weight > 0)
        longer = (rows**2).sum() / (2 * len(rows) * ((mean**2).sum() + 1e-3)) if len(rows) else 1.0
        wanted.append(max(1.0, longer) * mean)
    near(played(FedExP(), history), wanted, [10 * np.abs(w).max() + 1e-6 for w in wanted])


def test_the_point_is_the_mean_of_the_last_two_iterates():
    assert FedExP().epsilon == 1e-3
    rule, params = FedExP(), np.array([3.0, 4.0], np.float32)
    np.testing.assert_allclose(rule.point(np.array([1.0, -2.0], np.float32), params), [2.5, 5.0])


def test_a_negative_epsilon_is_refused():
    with pytest.raises(BadInput, match="epsilon must be at least 0"):
        FedExP(-1.0)

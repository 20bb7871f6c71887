"""Minimum separation: rests are kept, chances count, and the limit is a cycle."""

from itertools import islice

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.core.rng import stream
from fedstale.participation import MinimumSeparation


def rows(process, n, rounds):
    return np.array(list(islice(process.rows(n, stream(0, "rows")), rounds)))


def test_after_a_visit_a_client_rests():
    there = rows(MinimumSeparation(size=2, rest=3), 12, 600)
    assert (there.sum(axis=1) == 2).all()
    gaps = np.concatenate([np.diff(np.flatnonzero(client)) for client in there.T])
    assert gaps.min() == 4  # three rounds without
    assert gaps.max() > 8


def test_with_the_longest_rest_clients_come_in_a_cycle():
    there = rows(MinimumSeparation(size=3, rest=3), 12, 40)
    np.testing.assert_array_equal(there[4:], there[:-4])
    assert (there[:4].sum(axis=0) == 1).all()


def test_too_few_rested_clients_all_come():
    there = rows(MinimumSeparation(size=3, rest=3), 5, 12)
    assert there.sum(axis=1).tolist() == [3, 2, 0, 0] * 3


def test_without_rest_the_chances_decide():
    process = MinimumSeparation(size=1, rest=0, p=[1, 2, 5])
    np.testing.assert_allclose(rows(process, 3, 8000).mean(axis=0), [1 / 8, 2 / 8, 5 / 8], atol=0.02)
    np.testing.assert_allclose(process.probs(3), [1 / 8, 2 / 8, 5 / 8], atol=0.02)


def test_settings_that_make_no_sense_are_refused():
    for settings in ({"size": 0, "rest": 1}, {"size": 1, "rest": -1}, {"size": 1, "rest": 0, "p": [0.0, 1.0]}):
        with pytest.raises(BadInput, match="got"):
            MinimumSeparation(**settings)

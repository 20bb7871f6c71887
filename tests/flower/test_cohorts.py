"""Beliefs about clients that join at different times."""

import numpy as np
import pytest

import fedstale as fs
from fedstale.flower.cohorts import Cohorts


@pytest.mark.parametrize("estimator", [fs.Intervals(), fs.BetaBernoulli(), fs.Transitions()], ids=str)
def test_newcomers_are_believed_as_if_training_had_begun_with_them(estimator):
    rows, cohorts = np.random.default_rng(0).random((9, 5)) < 0.5, Cohorts(estimator)
    belief, old, new = cohorts.init(3), estimator.init(3), estimator.init(2)
    for t, row in enumerate(rows):
        if t == 4:
            belief = cohorts.joined(belief, 2)
        belief, old = cohorts.observe(belief, row if t >= 4 else row[:3]), estimator.observe(old, row[:3])
        new = estimator.observe(new, row[3:]) if t >= 4 else new
    expected = np.concatenate([estimator.probs(old), estimator.probs(new)])
    assert np.array_equal(cohorts.probs(belief), expected)
    if isinstance(estimator, fs.Transitions):
        assert np.array_equal(
            cohorts.mixing(belief), np.concatenate([estimator.mixing(old), estimator.mixing(new)])
        )
    else:
        assert cohorts.mixing(belief).tolist() == [0] * 5
    left = cohorts.without(belief, np.array([0, 1, 0, 0, 0], bool))
    assert np.array_equal(cohorts.probs(left), np.delete(expected, 1))
    assert len(cohorts.without(belief, np.array([0, 0, 0, 1, 1], bool))) == 1

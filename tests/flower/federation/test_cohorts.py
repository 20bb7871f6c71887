"""Beliefs about clients that join at different times."""

import numpy as np
import pytest

import fedstale as fs
from fedstale.flower.federation.state.server_state import Cohorts
from fedstale.lab.runs.codec import pack, unpack


@pytest.mark.parametrize(
    "estimator", [fs.Intervals(), fs.estimators.BetaBernoulli(), fs.estimators.Transitions()], ids=str
)
def test_newcomers_are_believed_as_if_training_had_begun_with_them(estimator):
    rows, cohorts = np.random.default_rng(0).random((9, 5)) < 0.5, Cohorts(estimator)
    belief, old, new = cohorts.init(3), estimator.init(3), estimator.init(2)
    for t, row in enumerate(rows):
        if t == 4:
            belief = belief.resized(np.arange(3), np.arange(5))
        belief, old = cohorts.observe(belief, row if t >= 4 else row[:3]), estimator.observe(old, row[:3])
        new = estimator.observe(new, row[3:]) if t >= 4 else new
    expected = np.concatenate([estimator.probs(old), estimator.probs(new)])
    assert np.array_equal(cohorts.probs(belief), expected)
    if isinstance(estimator, fs.estimators.Transitions):
        assert np.array_equal(
            cohorts.mixing(belief), np.concatenate([estimator.mixing(old), estimator.mixing(new)])
        )
    else:
        assert cohorts.mixing(belief).tolist() == [0] * 5
    again = restored(belief, cohorts.init(5))
    assert again.cohorts[1].size == 2
    assert np.array_equal(cohorts.probs(cohorts.observe(again, row)), cohorts.probs(cohorts.observe(belief, row)))
    left = belief.resized(np.arange(5), np.array([0, 2, 3, 4]))
    assert np.array_equal(cohorts.probs(left), np.delete(expected, 1))
    assert len(belief.resized(np.arange(5), np.arange(3)).cohorts) == 1


def restored(belief, like):
    """A belief from its saved form, as a checkpoint is read."""
    arrays = {}
    return unpack(pack(belief, "b", arrays), like, "b", arrays.__getitem__)


def test_a_belief_that_was_saved_before_there_were_cohorts_is_read():
    estimator, heard = fs.Intervals(), np.array([True, False, True])
    old = estimator.observe(estimator.init(3), heard)
    read = restored(old, Cohorts(estimator).init(3))
    assert np.array_equal(Cohorts(estimator).probs(read), estimator.probs(old))
    assert [c.size for c in read.cohorts] == [3]
    assert restored(None, Cohorts(fs.estimators.Known([0.5])).init(1)).cohorts == ((1, None),)

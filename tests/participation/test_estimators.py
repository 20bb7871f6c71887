"""Known, and FedAU's intervals against their written definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedstale.core import BadInput, Mask
from fedstale.participation.estimators import Intervals, Known

histories = hnp.arrays(np.bool_, st.tuples(st.integers(0, 40), st.integers(1, 4)))
cutoffs = st.none() | st.integers(1, 8)


def by_definition(heard: list[bool], cutoff: int | None) -> float:
    """1 / ω from one client's past: the mean length of its completed intervals, 1 while none is complete."""
    lengths, length = [], 0
    for present in heard:
        length += 1
        if present or length == cutoff:
            lengths.append(length)
            length = 0
    ω = sum(lengths) / len(lengths) if lengths else 1.0
    return 1 / ω


def beliefs(estimator: Intervals, heard: Mask) -> np.ndarray:
    """(rounds + 1, n): what is believed before each round, and after the last."""
    belief = estimator.init(heard.shape[1])
    rows = [estimator.probs(belief)]
    for row in heard:
        belief = estimator.observe(belief, row)
        rows.append(estimator.probs(belief))
    return np.array(rows)


@given(histories, cutoffs)
def test_intervals_follow_the_definition(heard: Mask, cutoff: int | None) -> None:
    got = beliefs(Intervals(cutoff), heard)
    wanted = [[by_definition(list(c[:t]), cutoff) for c in heard.T] for t in range(len(heard) + 1)]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_intervals_of_one_client_by_hand() -> None:
    came = np.array([[0], [0], [1], [1], [0], [1], [0], [0], [0], [0]], bool)
    lengths = beliefs(Intervals(cutoff=3), came)[:, 0] ** -1
    np.testing.assert_allclose(lengths, [1, 1, 1, 3, 2, 2, 2, 2, 2, 9 / 4, 9 / 4], rtol=1e-6)
    forever = beliefs(Intervals(cutoff=None), came)[:, 0] ** -1
    np.testing.assert_allclose(forever, [1, 1, 1, 3, 2, 2, 2, 2, 2, 2, 2], rtol=1e-6)


@given(histories, st.integers(1, 8))
def test_intervals_stay_within_the_cutoff(heard: Mask, cutoff: int) -> None:
    got = beliefs(Intervals(cutoff), heard)
    assert (got <= 1).all()
    assert (got >= np.float32(1 / cutoff) * (1 - 1e-6)).all()


def test_intervals_find_p() -> None:
    """1 / p̂ is the mean of about T·p geometric intervals of mean 1/p and variance (1-p)/p²."""
    p, T = np.array([0.2, 0.5, 0.9]), 20_000
    heard = np.random.default_rng(1).random((T, 3)) < p
    got = 1 / beliefs(Intervals(None), heard)[-1]
    assert (np.abs(got - 1 / p) < 4 * np.sqrt((1 - p) / p**2 / (T * p))).all()


def test_intervals_do_not_touch_the_past() -> None:
    """A belief that was kept is not changed by what is observed later."""
    estimator = Intervals(2)
    belief = estimator.init(2)
    before = estimator.probs(belief).copy()
    for _ in range(5):
        estimator.observe(belief, np.array([True, False]))
    np.testing.assert_array_equal(estimator.probs(belief), before)


@pytest.mark.parametrize("cutoff", [0, -1])
def test_cutoff_is_checked(cutoff: int) -> None:
    with pytest.raises(BadInput, match=f"cutoff must be at least 1, got {cutoff}"):
        Intervals(cutoff)


def test_known_needs_probabilities() -> None:
    with pytest.raises(BadInput, match="has no probabilities"):
        Known().init(3)
    with pytest.raises(BadInput, match="3 clients, got 2"):
        Known([0.5, 0.5]).init(3)
    with pytest.raises(BadInput, match="3 clients, got 1"):
        Known([0.5, 0.5, 1], [0.1]).init(3)


@pytest.mark.parametrize("p", [[1.5, 0.5], [-0.1], [1e300], [float("nan")], 0.5, [[0.5]]])
def test_known_checks_its_probabilities(p: object) -> None:
    with pytest.raises(BadInput, match=r"p must be one number in \[0, 1\] per client"):
        Known(p)


def test_known_believes_what_it_is_told_unless_it_was_given_its_own() -> None:
    truth, mixing = np.array([0.25, 1], np.float32), np.array([0.5, 0], np.float32)
    told, own = Known().with_truth(truth, mixing), Known([0.5, 0.5]).with_truth(truth, mixing)
    for estimator, wanted in ((told, truth), (own, [0.5, 0.5])):
        belief = estimator.init(2)
        for _ in range(3):
            belief = estimator.observe(belief, np.array([True, False]))
        np.testing.assert_array_equal(estimator.probs(belief), wanted)
        np.testing.assert_array_equal(estimator.mixing(belief), mixing)
    np.testing.assert_array_equal(Known([0.5]).mixing(None), [0])

"""Estimators with a prior, against slow counts of the same history."""

from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedstale.channels import Loss
from fedstale.core import BadInput, Estimator, Local, Mask
from fedstale.core.rng import stream
from fedstale.engines.serial import Serial
from fedstale.participation.estimators import BetaBernoulli, Transitions
from fedstale.participation.markov import Markov
from fedstale.simulate import simulate
from fedstale.strategies import Unbiased
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_estimator

histories = hnp.arrays(np.bool_, st.tuples(st.integers(0, 30), st.integers(1, 4)))
priors = st.floats(0.1, 20)


def believed(estimator: Estimator, heard: Mask, what: str = "probs") -> np.ndarray:
    """(rounds + 1, n): what is believed before each round, and after the last."""
    belief = estimator.init(heard.shape[1])
    rows = [getattr(estimator, what)(belief)]
    for row in heard:
        belief = estimator.observe(belief, row)
        rows.append(getattr(estimator, what)(belief))
    assert all(row.dtype == np.float32 for row in rows)
    return np.array(rows)


def chain_of(states: list[bool], prior: np.ndarray) -> tuple[float, float]:
    """π̂ and λ̂ of one client's past, from the matrix of its transitions."""
    counts = np.array(prior, float)
    for before, then in pairwise(states):
        counts[int(before), int(then)] += 1
    P = counts / counts.sum(axis=1, keepdims=True)
    p00, p11 = P[0, 0], P[1, 1]
    assert np.sort(np.linalg.eigvals(P))[0] == pytest.approx(p00 + p11 - 1)
    return (1 - p00) / (2 - p00 - p11), p00 + p11 - 1


@pytest.mark.parametrize(
    "estimator",
    [
        BetaBernoulli(),
        BetaBernoulli(0.5, 0),
        BetaBernoulli([1, 2, 3, 4], 2),
        Transitions(),
        Transitions([[5, 1], [1, 3]]),
    ],
    ids=repr,
)
def test_the_battery(estimator: Estimator) -> None:
    check_estimator(estimator)


@given(histories, priors, priors)
def test_beta_bernoulli_follows_the_definition(heard: Mask, n0: float, m0: float) -> None:
    got = believed(BetaBernoulli(n0, m0), heard)
    for t in range(len(heard) + 1):
        for i in range(heard.shape[1]):
            count = sum(heard[s, i] for s in range(t))
            assert got[t, i] == pytest.approx((count + n0) / (t + n0 + m0), rel=1e-6)


@given(histories, hnp.arrays(float, (2, 2), elements=priors))
def test_transitions_follow_the_definition(heard: Mask, prior: np.ndarray) -> None:
    π, λ = believed(Transitions(prior), heard), believed(Transitions(prior), heard, "mixing")
    for t in range(len(heard) + 1):
        wanted = [chain_of(heard[:t, i].tolist(), prior) for i in range(heard.shape[1])]
        np.testing.assert_allclose(π[t], [w[0] for w in wanted], rtol=1e-5)
        np.testing.assert_allclose(λ[t], [w[1] for w in wanted], rtol=1e-5, atol=1e-6)


def test_one_client_by_hand() -> None:
    """off on on off: one off → on, one on → on, one on → off, and a uniform prior of one each."""
    came = np.array([[0], [1], [1], [0]], bool)
    assert believed(Transitions(), came)[-1, 0] == pytest.approx((2 / 3) / (2 / 3 + 2 / 4))
    assert believed(Transitions(), came, "mixing")[-1, 0] == pytest.approx(1 / 3 + 2 / 4 - 1)
    np.testing.assert_allclose(believed(Transitions(), came)[:2, 0], 0.5)  # one round is no transition
    np.testing.assert_allclose(believed(BetaBernoulli(1, 1), came)[:, 0], [1 / 2, 1 / 3, 2 / 4, 3 / 5, 3 / 6])


def test_they_find_the_chain() -> None:
    """P̂ of a row that was left k times is within 5 √(p(1-p)/k); π̂ and λ̂ follow."""
    π, λ, T = np.array([0.1, 0.9, 0.5]), np.array([0.9, 0.5, -0.3]), 10_000
    heard = np.array(list(islice(Markov(π, λ).rows(3, stream(0, "participation")), T)))
    come, go = (1 - λ) * π, (1 - λ) * (1 - π)
    error = 5 * np.sqrt(come * (1 - come) / (T * (1 - π)) + go * (1 - go) / (T * π))  # of λ̂ = 1 - come - go
    assert (np.abs(believed(Transitions(), heard, "mixing")[-1] - λ) < error).all()
    slow = 5 * np.sqrt(π * (1 - π) / T * (1 + λ) / (1 - λ))  # of a share of correlated rounds
    assert (np.abs(believed(Transitions(), heard)[-1] - π) < slow).all()
    assert (np.abs(believed(BetaBernoulli(), heard)[-1] - π) < slow).all()


@given(histories, histories)
def test_a_history_is_a_prior(before: Mask, then: Mask) -> None:
    """To have seen rounds is to start from their counts; between the two stretches no transition is counted."""
    n = min(before.shape[1], then.shape[1])
    before, then = before[:, :n], then[:, :n]
    both = np.concatenate([before, then])
    np.testing.assert_allclose(
        believed(BetaBernoulli(2, 3).after(before), then)[-1], believed(BetaBernoulli(2, 3), both)[-1], rtol=1e-6
    )
    warm = believed(Transitions().after(before), then[:1])[0]
    np.testing.assert_allclose(warm, believed(Transitions(), before)[-1], rtol=1e-6)


def first_beliefs(warmup_rounds: int, seed: int = 1, **settings: Any) -> Any:
    chain = Markov([0.9, 0.5, 0.1], [0.8, 0.0, 0.5])
    engine = Serial(Quadratic.random(3, 2), Local(lr=0.1, steps=1))
    estimator = Transitions(warmup_rounds=warmup_rounds)
    return next(simulate(engine, Unbiased(), chain, rounds=1, seed=seed, estimator=estimator, **settings)).probs


def test_rounds_that_were_watched_come_from_a_stream_of_their_own() -> None:
    chain = Markov([0.9, 0.5, 0.1], [0.8, 0.0, 0.5])
    rows = np.array([*islice(chain.rows(3, stream(1, "watched")), 40)])
    np.testing.assert_array_equal(first_beliefs(40), Transitions().after(rows).probs(Transitions().init(3)))
    assert not np.array_equal(first_beliefs(40), first_beliefs(40, seed=2))
    np.testing.assert_allclose(first_beliefs(0), 0.5)
    np.testing.assert_allclose(first_beliefs(20_000), [0.9, 0.5, 0.1], atol=0.02)


def test_to_have_watched_is_done_once_and_not_over_a_lossy_channel() -> None:
    ready = Transitions(warmup_rounds=2).warmed_up(iter(np.array([[True], [False], [True]])))
    assert ready.warmup_rounds == 0
    assert ready.warmed_up(iter([])) is ready
    assert ready == Transitions().after(np.array([[True], [False]]))
    with pytest.raises(BadInput, match="warmup_rounds must be 0 with Loss"):
        first_beliefs(5, channel=Loss(up=0.5))
    first_beliefs(0, channel=Loss(up=0.5))


def test_beliefs_that_were_kept_do_not_change() -> None:
    for estimator in (BetaBernoulli(), Transitions()):
        heard = np.array([True, False])
        belief = estimator.observe(estimator.init(2), heard)
        before = estimator.probs(belief).copy()
        heard[:] = [False, True]  # the caller's to reuse
        for _ in range(3):
            estimator.observe(belief, np.array([True, True]))
        np.testing.assert_array_equal(estimator.probs(belief), before)
    later = Transitions().observe(belief, np.array([True, True]))
    assert later.stayed.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: BetaBernoulli(0), "n0 must be above 0 and finite, one or one per client, got 0"),
        (lambda: BetaBernoulli([1, float("inf")]), "n0 must be above 0"),
        (lambda: BetaBernoulli(1, -1), "m0 must be at least 0 and finite, one or one per client, got -1"),
        (lambda: BetaBernoulli([1, 2]).init(3), "n0 must be one number or one for each of 3 clients, got 2"),
        (lambda: BetaBernoulli(1, [1, 2]).init(3), "m0 must be one number or one for each of 3 clients, got 2"),
        (
            lambda: Transitions([[1, 0], [1, 1]]),
            r"prior must be \(2, 2\) or \(clients, 2, 2\) numbers above 0, got",
        ),
        (lambda: Transitions([[1, float("nan")], [1, 1]]), "prior must be"),
        (lambda: Transitions([1, 1]), "prior must be"),
        (lambda: Transitions(warmup_rounds=-1), "warmup_rounds must be at least 0, got -1"),
        (lambda: Transitions(np.ones((2, 2, 2))).init(3), "prior must be one or one for each of 3 clients, got 2"),
    ],
)
def test_settings_are_checked(make: object, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        make()  # type: ignore[operator]

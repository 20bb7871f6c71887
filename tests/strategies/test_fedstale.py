"""FedStale against its formula, its identities and its expectation."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput, Round, Strategy
from fedstale.strategies import FedAvg, FedStale, Unbiased
from tests.strategies.rounds import History, histories, near, numbers, played

betas = st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]) | st.floats(0, 1)


def by_hand(β: float, history: History) -> tuple[list[list[float]], list[list[float]]]:
    """β Σ_i a_i h_i + Σ_S (a_i / p_i)(Δ_i - β h_i), then h_i ← Δ_i; and the size of the terms."""
    h = [[0.0] * history.d for _ in range(history.n)]
    steps, scales = [], []
    for r in map(numbers, history.rounds):
        step, scale = [0.0] * history.d, [0.0] * history.d
        for j in range(history.d):
            for i in range(history.n):
                step[j] += β * r.a[i] * h[i][j]
                scale[j] += r.a[i] * abs(h[i][j])
            for i in r.clients:
                Δ = r.updates[i][j]
                if Δ is not None:
                    step[j] += r.a[i] / r.p[i] * (Δ - β * h[i][j])
                    scale[j] += r.a[i] / r.p[i] * (abs(Δ) + abs(h[i][j]))
        for i in r.clients:
            h[i] = [old if new is None else new for old, new in zip(h[i], r.updates[i], strict=True)]
        steps.append(step)
        scales.append(scale)
    return steps, scales


@given(histories(), betas)
def test_is_the_formula(history: History, β: float) -> None:
    wanted, scales = by_hand(β, history)
    near(played(FedStale(β), history), wanted, scales)


@given(histories())
def test_beta_0_is_unbiased(history: History) -> None:
    for stale, fresh in zip(played(FedStale(0), history), played(Unbiased(), history), strict=True):
        np.testing.assert_array_equal(stale, fresh)


@given(histories(everybody=True), betas)
def test_with_everybody_every_beta_is_the_mean(history: History, β: float) -> None:
    _, scales = by_hand(β, history)
    near(played(FedStale(β), history), played(FedAvg(), history), scales)


def test_an_empty_round_still_steps_with_the_memory() -> None:
    r = Round(
        t=1,
        params=np.zeros(2, np.float32),
        clients=np.array([1]),
        updates=np.array([[4.0, -8.0]], np.float32),
        arrived=np.ones((1, 1), bool),
        losses=np.zeros(1, np.float32),
        weights=np.array([0.75, 0.25], np.float32),
        probs=np.array([0.5, 0.5], np.float32),
    )
    nobody = r._replace(
        t=2, clients=r.clients[:0], updates=r.updates[:0], arrived=r.arrived[:0], losses=r.losses[:0]
    )
    first, second, third = played(FedStale(0.5), History(2, 2, [r, nobody, nobody._replace(t=3)]))
    np.testing.assert_array_equal(first, [2.0, -4.0])  # a / p = 0.5, no memory yet
    np.testing.assert_array_equal(second, [0.5, -1.0])  # β a h
    np.testing.assert_array_equal(third, second)
    first, second, _ = played(
        FedStale(0.5, skip_empty_rounds=True), History(2, 2, [r, nobody, nobody._replace(t=3)])
    )
    np.testing.assert_array_equal(first, [2.0, -4.0])
    np.testing.assert_array_equal(second, [0.0, 0.0])  # as in the authors' released code


def expected_step(strategy: Strategy, state: object, full: Round, p: np.ndarray) -> np.ndarray:
    """E[step] over all patterns of arrival, each coordinate of client i being there with chance p_i, exactly."""
    n, d = full.updates.shape
    mean = np.zeros(d)
    for bits in itertools.product([False, True], repeat=n * full.arrived.shape[1]):
        here = np.array(bits).reshape(n, -1)
        chance = np.prod(np.where(here, p[:, None], 1 - p[:, None]))
        heard = np.flatnonzero(here.any(axis=1))
        r = full._replace(
            clients=heard,
            updates=np.where(here, full.updates, np.float32(np.nan))[heard],
            arrived=here[heard],
            losses=full.losses[heard],
        )
        mean += chance * strategy.aggregate(copy.deepcopy(state), r)[0].astype(np.float64)
    return mean


@given(histories(), betas, st.integers(0, 2**32), st.booleans())
def test_is_unbiased_whatever_is_in_the_memory(history: History, β: float, seed: int, cut: bool) -> None:
    rng, (n, d, _) = np.random.default_rng(seed), history
    n, d = (min(n, 2), min(d, 3)) if cut else (n, d)
    history = History(n, d, [only(r, n, d) for r in history.rounds])
    p = rng.uniform(0.1, 1, n).astype(np.float32)
    full = history.rounds[-1]._replace(
        t=len(history.rounds) + 1,
        clients=np.arange(n),
        updates=rng.standard_normal((n, d)).astype(np.float32),
        arrived=np.ones((n, d if cut else 1), bool),
        losses=np.zeros(n, np.float32),
        probs=p,
    )
    wanted = full.weights.astype(np.float64) @ full.updates.astype(np.float64)
    for strategy in (FedStale(β), Unbiased()):
        state = strategy.init(n, d)
        for r in history.rounds:
            _, state = strategy.aggregate(state, r)
        h = state.rows if isinstance(strategy, FedStale) else np.zeros((n, d))
        scale = (full.weights[:, None] / p[:, None] * (np.abs(full.updates) + 2 * np.abs(h))).sum(axis=0)
        near([expected_step(strategy, state, full, p.astype(np.float64))], [wanted], [scale])


def only(r: Round, n: int, d: int) -> Round:
    """The round of the first n clients and the first d coordinates."""
    rows = r.clients < n
    return r._replace(
        clients=r.clients[rows],
        updates=r.updates[rows, :d],
        arrived=r.arrived[rows, :d],
        losses=r.losses[rows],
        weights=r.weights[:n],
        probs=r.probs[:n],
    )


@given(histories(), betas, st.integers(1, 6))
def test_a_state_that_was_stored_goes_on(history: History, β: float, at: int) -> None:
    strategy, steps = FedStale(β), []
    state = strategy.init(history.n, history.d)
    for r in history.rounds:
        state = pickle.loads(pickle.dumps(state)) if r.t == at else state
        step, state = strategy.aggregate(state, r)
        steps.append(step)
    np.testing.assert_array_equal(steps, played(strategy, history))


@pytest.mark.parametrize("beta", [-0.1, 1.5, float("nan"), True, None, [0.5]])
def test_beta_is_checked(beta: float) -> None:
    with pytest.raises(BadInput, match="beta must be "):
        FedStale(beta)


def test_a_beta_that_is_a_word_is_answered_with_the_rule_that_learns_it() -> None:
    with pytest.raises(BadInput, match="got 'auto'; SelfTuning, kind \"auto\", learns it"):
        FedStale("auto")


@pytest.mark.parametrize("strategy", [FedStale(), Unbiased()])
def test_a_client_with_probability_0_is_refused(strategy: Strategy) -> None:
    r = Round(
        t=1,
        params=np.zeros(1, np.float32),
        clients=np.array([0, 1]),
        updates=np.ones((2, 1), np.float32),
        arrived=np.ones((2, 1), bool),
        losses=np.zeros(2, np.float32),
        weights=np.full(2, 0.5, np.float32),
        probs=np.array([1.0, 0.0], np.float32),
    )
    with pytest.raises(BadInput, match=r"needs p > 0, got 0 for clients \[1\]"):
        strategy.aggregate(strategy.init(2, 1), r)

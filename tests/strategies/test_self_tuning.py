"""FedStale that tunes itself: against the rule as it is described, and its promises one by one."""

import copy
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstale as fs
from fedstale.core import BadInput


def random_round(
    rng: np.random.Generator, t: int, n: int, d: int, p: np.ndarray, weights: np.ndarray
) -> fs.core.Round:
    clients = np.flatnonzero(rng.random(n) < p)
    m = len(clients)
    updates = (rng.standard_normal((m, d)) + 1).astype(np.float32)
    return round_of(t, clients, updates, weights, p)


def round_of(t: int, clients: Any, updates: Any, weights: Any, p: Any, arrived: Any = None) -> fs.core.Round:
    """A round in which all has arrived, unless it says otherwise."""
    m, a, p = len(clients), np.asarray(weights, np.float32), np.broadcast_to(np.float32(p), np.shape(weights))
    Δ, whole = np.asarray(updates, np.float32), np.ones((m, 1), bool)
    there = whole if arrived is None else arrived
    return fs.core.Round(t, np.zeros(Δ.shape[1], np.float32), np.asarray(clients), Δ, there, np.zeros(m), a, p)


class Plain:
    """The rule as it is described: a prediction for every client, one coordinate after the other, in float64."""

    def __init__(self, n: int, d: int, gain: float) -> None:
        self.h, self.count, self.m, self.gain = np.zeros((n, d)), [0] * n, np.zeros(d), gain
        self.rounds, self.heard, self.β, self.A, self.B = 0, 0.0, 0.5, 0.0, 0.0

    def step(self, r: fs.core.Round) -> np.ndarray:
        n, d = self.h.shape
        a, p, S = r.weights.astype(float), r.probs.astype(float), r.clients.tolist()
        Δ = dict(zip(S, r.updates.astype(float), strict=True))
        there = dict(zip(S, np.broadcast_to(r.arrived, (len(S), d)), strict=True))
        g = [self.m + self.β * (self.h[i] - self.m) if self.count[i] else self.m for i in range(n)]
        here = sum((a[i] * there[i] for i in S), np.zeros(d))
        mean = self.rounds / self.heard if self.heard else 2.0  # of 1 / p, from the rounds before
        self.rounds, self.heard = self.rounds + 1, self.heard + here.mean()
        odds = {i: (mean + self.count[i] / p[i]) / (1 + self.count[i]) - 1 for i in S}
        o = {i: a[i] * odds[i] if odds[i] > 1e-6 else 0.0 for i in S}
        out = np.zeros(d)
        for j in np.flatnonzero(here > 0):
            T = [i for i in S if there[i][j]]
            out[j] = sum(a[i] * Δ[i][j] for i in T) + sum(a[i] * g[i][j] for i in range(n) if i not in T)
            total, absent = sum(o[i] for i in T), max(1 - here[j], 0)
            f = absent / total if total > 0 else 0.0
            if any(self.count):
                f = min(f, 1) / (1 + 2 * sum(o[i] ** 2 for i in T) / total**2) if total > 0 else 0.0
            out[j] += f * sum(o[i] * (Δ[i][j] - g[i][j]) for i in T)
        self._remember(Δ, there, o)
        self.m = np.where(here > 0, out, self.m)
        return out

    def _remember(self, Δ: dict[int, Any], there: dict[int, Any], o: dict[int, float]) -> None:
        again = [i for i in Δ if self.count[i]]
        x, y = ({i: (z[i] - self.m) * there[i] for i in again} for z in (Δ, self.h))
        fade = 1 - min(sum(o[i] for i in again), 1) / 8
        self.A = fade * self.A + sum(o[i] ** 2 * (y[i] @ y[i]) for i in again)
        self.B = fade * self.B + sum(o[i] ** 2 * (x[i] @ y[i]) for i in again)
        self.β = float(np.clip(self.B / self.A, 0, 1)) if self.A > 0 else self.β
        for i in Δ:
            gain = max(1 / (self.count[i] + 1), self.gain)
            self.h[i] += np.where(there[i], gain * (Δ[i] - self.h[i]), 0)
            self.count[i] += bool(there[i].any())


@given(seed=st.integers(0, 10**6), gain=st.sampled_from([1.0, 0.3]), n=st.integers(2, 6), cut=st.booleans())
def test_equals_the_rule_as_it_is_described(seed: int, gain: float, n: int, cut: bool) -> None:
    rng, d = np.random.default_rng(seed), 5
    p = np.where(rng.random(n) < 0.3, 1.0, rng.uniform(0.05, 1, n)).astype(np.float32)
    weights = rng.dirichlet(np.ones(n)).astype(np.float32)
    strategy, plain = fs.SelfTuning(gain), Plain(n, d, gain)
    state = strategy.init(n, d)
    for t in range(1, 20):
        r = random_round(rng, t, n, d, p, weights)
        r = r._replace(arrived=rng.random((len(r.clients), d)) < 0.7) if cut else r
        step, state = strategy.aggregate(state, r)
        np.testing.assert_allclose(step, plain.step(r), rtol=2e-4, atol=2e-4)
        plain.β = plain.β if plain.A > 1e-9 else state.beta  # 0 / 0, up to rounding
        assert state.beta == pytest.approx(plain.β, abs=1e-4)


@given(seed=st.integers(0, 10**6), p=st.floats(1e-4, 1), cut=st.booleans())
def test_with_equal_probabilities_and_an_empty_memory_it_is_fedavg(seed: int, p: float, cut: bool) -> None:
    rng, n, d = np.random.default_rng(seed), 9, 4
    weights = rng.dirichlet(np.ones(n))
    r = random_round(rng, 1, n, d, np.full(n, 0.5), weights)._replace(probs=np.full(n, p, np.float32))
    r = r._replace(arrived=rng.random((len(r.clients), d)) < 0.7, weights=r.weights) if cut else r
    strategy = fs.SelfTuning()
    np.testing.assert_allclose(strategy.aggregate(strategy.init(n, d), r)[0], r.average(), rtol=1e-4, atol=1e-5)


@given(seed=st.integers(0, 10**6), known=st.booleans())
def test_with_everybody_there_it_is_the_mean_whatever_was_before(seed: int, known: bool) -> None:
    rng, n, d = np.random.default_rng(seed), 5, 4
    weights, p = rng.dirichlet(np.ones(n)), rng.uniform(0.05, 0.9, n)
    strategy = fs.SelfTuning()
    state = strategy.init(n, d)
    for t in range(1, 8):
        _, state = strategy.aggregate(state, random_round(rng, t, n, d, p, weights))
    r = round_of(8, np.arange(n), rng.standard_normal((n, d)), weights, p if known else 1.0)
    step = strategy.aggregate(state, r)[0]
    np.testing.assert_allclose(step, weights @ r.updates, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("estimator", [fs.estimators.Known(), fs.Intervals(), fs.Intervals(cutoff=None)])
def test_it_does_not_stand_still_where_few_of_many_are_heard(estimator: fs.core.Estimator) -> None:
    """5,000 clients, 50 a round: the first step is FedAvg's, and later ones are about as long."""
    task = fs.Quadratic(5 + np.random.default_rng(1).standard_normal((5000, 3)))
    engine, who = fs.Serial(task, fs.Local(lr=0.02)), fs.participation.Sampling(fs.Bernoulli(np.ones(5000)), 50)
    steps = {}
    for rule in (fs.FedAvg(), fs.SelfTuning()):
        run = fs.simulate(engine, rule, who, rounds=20, seed=1, estimator=estimator)
        steps[rule] = [s.step for s in run]
    fedavg, auto = steps.values()
    np.testing.assert_allclose(auto[0], fedavg[0], rtol=1e-4)
    assert np.linalg.norm(sum(auto)) > 0.9 * np.linalg.norm(sum(fedavg))


def test_the_first_estimates_of_a_client_are_not_believed() -> None:
    """Intervals says p = 1 of a client that was never heard, and 1/30 of one that came first in round 30."""
    n, rng, strategy = 1000, np.random.default_rng(1), fs.SelfTuning(beta=0.0)
    p, state = np.where(np.arange(n) % 2, 1.0, 1 / 30), strategy.init(n, n)
    for t in range(1, 4):
        S = np.sort(rng.choice(n, 50, replace=False))
        step, state = strategy.aggregate(state, round_of(t, S, np.eye(n)[S], np.full(n, 1 / n), p))
        fresh = step[S]  # how much each client counts
        assert fresh.max() < 4 * fresh.min()


@given(seed=st.integers(0, 10**6))
def test_no_estimate_makes_a_step_much_longer_than_the_updates(seed: int) -> None:
    rng, n, d = np.random.default_rng(seed), 6, 3
    weights, strategy = rng.dirichlet(np.ones(n)), fs.SelfTuning()
    state = strategy.init(n, d)
    for t in range(1, 40):
        r = random_round(rng, t, n, d, rng.random(n), weights)
        step, state = strategy.aggregate(state, r._replace(probs=np.float32(10.0 ** rng.uniform(-6, 0, n))))
        assert np.linalg.norm(step) < 3 * 6  # no update is longer than 6


def test_without_anybody_there_is_no_step_and_nothing_is_forgotten() -> None:
    rng, n, d = np.random.default_rng(1), 4, 3
    weights, strategy = np.full(n, 0.25), fs.SelfTuning()
    _, state = strategy.aggregate(strategy.init(n, d), round_of(1, [0, 2], np.ones((2, d)), weights, 0.5))
    before = copy.deepcopy(state)
    step, state = strategy.aggregate(state, round_of(2, np.arange(0), np.zeros((0, d)), weights, 0.5))
    assert not step.any()
    np.testing.assert_array_equal(state.centre, before.centre)
    np.testing.assert_array_equal(state.memory.total, before.memory.total)
    half = np.array([[True, False, True]])
    step, state = strategy.aggregate(state, round_of(3, [1], rng.random((1, d)), weights, 0.5, half))
    assert step[1] == 0
    assert step[[0, 2]].all()
    assert state.centre[1] == before.centre[1]


def test_a_client_that_is_forgotten_is_predicted_like_one_that_was_never_heard() -> None:
    n, d, weights, strategy = 4, 2, np.full(4, 0.25), fs.SelfTuning(beta=1.0)
    updates = [[1.0, 0.0], [1.0, 0.0], [0.0, 4.0]]
    _, state = strategy.aggregate(strategy.init(n, d), round_of(1, [0, 1, 2], updates, weights, 0.5))
    m = state.centre.copy()
    state = strategy.forget(state, np.array([2]))
    step, state = strategy.aggregate(state, round_of(2, [0, 1], updates[:2], weights, 0.5))  # as they were before
    np.testing.assert_allclose(step, 0.5 * np.array([1.0, 0.0]) + 0.5 * m, rtol=1e-6)
    state = strategy.forget(state, np.arange(n))
    r = round_of(3, [1, 3], [[3.0, 1.0], [1.0, 1.0]], weights, 0.5)
    np.testing.assert_allclose(strategy.aggregate(state, r)[0], r.average(), rtol=1e-5)


@given(seed=st.integers(0, 10**6))
def test_it_needs_sums_over_the_participants_only(seed: int) -> None:
    """Clients that keep their own memory send one vector each; the server closes the round with the sum."""
    rng, n, d = np.random.default_rng(seed), 5, 4
    weights, p = np.full(n, 1 / n, np.float32).astype(float), rng.uniform(0.1, 0.9, n)
    strategy = fs.SelfTuning()
    state, own = strategy.init(n, d), [(np.zeros(d), 0)] * n
    total, m, β, known = np.zeros(d), np.zeros(d), 0.5, 0.0  # at the server: Σ a_i h_i, …, Σ_seen a_i
    for t in range(1, 12):
        r = random_round(rng, t, n, d, p, weights)
        mean, messages = state.rounds / state.heard if state.heard else 2.0, []  # known when clients are asked
        for i, Δ in zip(r.clients.tolist(), r.updates.astype(float), strict=True):
            (h, k), a = own[i], weights[i]
            o = a * ((mean + k / np.float32(p[i])) / (1 + k) - 1)
            new, s = h + max(1 / (k + 1), 0.3) * (Δ - h), float(k > 0)
            scalars = [a, o, o * o, s * a, s * o, a * (1 - s)]
            messages.append(np.concatenate([a * (Δ - β * h), o * (Δ - β * h), a * (new - h), scalars]))
            own[i] = (new, k + 1)
        x, y, z, (here, odds, squares, a_seen, o_seen, joined) = np.split(
            sum(messages, np.zeros(3 * d + 6)), [d, 2 * d, 3 * d]
        )
        f = (1 - here) / odds if odds > 0 else 0.0
        f = min(f, 1) / (1 + 2 * squares / odds**2) if known and odds > 0 else f
        left = 1 - β * known - (here - β * a_seen) - f * (odds - β * o_seen)
        step, state = strategy.aggregate(state, r)
        if messages:
            m = β * total + x + f * y + left * m
            np.testing.assert_allclose(step, m, rtol=1e-3, atol=1e-4)
        total, known, β = total + z, known + joined, state.beta


@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_the_unbiased_form_is_unbiased_whatever_it_has_learned(gain: float) -> None:
    """The mean over all 2ⁿ patterns of who takes part, each with its probability, is the full step."""
    rng, n, d = np.random.default_rng(3), 4, 5
    p, weights = np.array([0.2, 0.5, 0.9, 1.0], np.float32), np.array([0.1, 0.4, 0.3, 0.2], np.float32)
    strategy = fs.SelfTuning(gain, unbiased=True)
    state = strategy.init(n, d)
    for t in range(1, 40):
        _, state = strategy.aggregate(state, random_round(rng, t, n, d, p, weights))
    assert 0 < state.beta < 1
    full = random_round(rng, 40, n, d, np.ones(n, np.float32), weights)
    mean = np.zeros(d)
    for pattern in itertools.product([False, True], repeat=n):
        here = np.array(pattern)
        chance = np.prod(np.where(here, p.astype(float), 1 - p.astype(float)))
        r = full._replace(
            clients=full.clients[here], updates=full.updates[here], arrived=full.arrived[here], probs=p
        )
        mean += chance * strategy.aggregate(copy.deepcopy(state), r)[0]
    np.testing.assert_allclose(mean, weights @ full.updates, rtol=1e-4, atol=1e-5)


@given(seed=st.integers(0, 10**6), unbiased=st.booleans(), kind=st.sampled_from(["zero", "same", "huge"]))
def test_stays_finite_with_rare_clients_and_odd_updates(seed: int, unbiased: bool, kind: str) -> None:
    rng, n, d = np.random.default_rng(seed), 5, 3
    p = np.array([0.001, 0.01, 0.3, 0.999, 1.0], np.float32)
    strategy = fs.SelfTuning(0.5, unbiased)
    state, weights = strategy.init(n, d), np.full(n, 0.2, np.float32)
    scale = {"zero": 0.0, "same": 1.0, "huge": 1e15}[kind]
    for t in range(1, 60):
        r = random_round(rng, t, n, d, np.where(rng.random(n) < 0.3, 0.9, p).astype(np.float32), weights)
        step, state = strategy.aggregate(state, r._replace(updates=np.full_like(r.updates, scale), probs=p))
        assert np.isfinite(step).all()
        assert 0 <= state.beta <= 1


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), lr=st.sampled_from([0.01, 0.1, 0.4, 0.8]), steps=st.sampled_from([1, 3]))
def test_it_stays_where_every_fixed_beta_does(seed: int, lr: float, steps: int) -> None:
    """Rare clients (p down to 0.1 %), rounds without anybody, rates up to where the fixed ones fail."""
    rng = np.random.default_rng(seed)
    n, d = rng.integers(2, 7), rng.integers(1, 6)
    p = np.where(rng.random(n) < 0.3, 1.0, 10 ** rng.uniform(-3, 0, n))
    task = fs.Quadratic.random(n, d, seed=seed, noise=0.3)
    far = 1000 * max(1.0, task.evaluate(task.init(0))["distance"])

    def end(rule: fs.core.Strategy) -> float:
        engine = fs.Serial(task, fs.Local(lr=lr, steps=steps))
        try:
            with np.errstate(over="ignore"):
                *_, last = fs.simulate(engine, rule, fs.Bernoulli(p), rounds=100, seed=seed)
        except fs.Diverged:
            return float("inf")
        return float(task.evaluate(last.params)["distance"])

    worst = max(end(fs.FedStale(beta)) for beta in (0.0, 0.2, 0.5, 0.8, 1.0))
    if worst < far:
        assert end(fs.recipe("auto").strategy) < 3 * max(worst, 1.0)
        assert end(fs.recipe("auto-unbiased").strategy) < 3 * max(worst, 1.0)


def test_it_learns_a_large_beta_from_steady_updates_and_a_small_one_from_noise() -> None:
    rng, n, d = np.random.default_rng(0), 6, 50
    p, weights = np.full(n, 0.4, np.float32), np.full(n, 1 / n, np.float32)
    steady = rng.standard_normal((n, d)).astype(np.float32)
    ends = []
    for noise in (0.0, 30.0):
        strategy = fs.SelfTuning(1.0, unbiased=True)
        state = strategy.init(n, d)
        for t in range(1, 80):
            r = random_round(rng, t, n, d, p, weights)
            updates = steady[r.clients] + noise * rng.standard_normal((len(r.clients), d)).astype(np.float32)
            _, state = strategy.aggregate(state, r._replace(updates=updates))
        ends.append(state.beta)
    assert ends[0] > 0.95
    assert ends[1] < 0.3


@pytest.mark.parametrize("name", ["auto", "auto-unbiased"])
def test_passes_the_battery_of_all_strategies(name: str) -> None:
    fs.testing.check_strategy(fs.recipe(name).strategy)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"beta": "best"}, "beta must be a number, got 'best'"),
        ({"beta": 2.0}, r"beta must be in \[0, 1\], got 2.0"),
        ({"gain": 0.0}, r"gain must be in \(0, 1\], got 0.0"),
        ({"gain": "x"}, "gain must be a number, got 'x'"),
        ({"unbiased": 1.5}, "unbiased must be true or false, got 1.5"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        fs.SelfTuning(**settings)


def test_the_recipes_are_its_defaults_and_its_unbiased_form() -> None:
    assert fs.recipe("auto").strategy == fs.SelfTuning()
    assert fs.recipe("auto-unbiased").strategy == fs.SelfTuning(gain=0.5, unbiased=True)


@given(seed=st.integers(0, 10**6), beta=st.sampled_from([0.0, 0.3, 1.0]))
def test_unbiased_with_a_fixed_beta_it_is_fedstale(seed: int, beta: float) -> None:
    rng, n, d = np.random.default_rng(seed), 4, 5
    p, weights = np.array([0.2, 0.5, 0.9, 1.0], np.float32), np.full(n, 0.25, np.float32)
    rules = [fs.FedStale(beta), fs.SelfTuning(gain=1.0, unbiased=True, beta=beta)]
    states = [rule.init(n, d) for rule in rules]  # type: ignore[attr-defined]
    for t in range(1, 12):
        r = random_round(rng, t, n, d, p, weights)
        (x, states[0]), (y, states[1]) = (rule.aggregate(s, r) for rule, s in zip(rules, states, strict=True))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(x, y)


def test_a_client_that_was_forgotten_is_remembered_anew_as_a_newcomer_is() -> None:
    """Its next update counts whole, not as one more of many."""
    strategy, half = fs.SelfTuning(gain=0.25), np.full(2, 0.5, np.float32)
    state, along = strategy.init(2, 2), np.eye(2, dtype=np.float32)

    def heard(t: int, clients: list[int], rows: object) -> fs.core.Round:
        updates, m = np.asarray(rows, np.float32).reshape(len(clients), 2), len(clients)
        return fs.core.Round(t, np.zeros(2, np.float32), np.array(clients, np.int64), updates,
                        np.ones((m, 1), bool), np.zeros(m, np.float32), half, half)  # fmt: skip

    for t in range(1, 4):
        _, state = strategy.aggregate(state, heard(t, [0, 1], [[5, 0], along[1]]))
    state = strategy.forget(state, np.array([0]))
    _, state = strategy.aggregate(state, heard(4, [0], along[:1]))
    np.testing.assert_array_equal(state.memory.row(0), along[0])

"""FedStale that tunes itself: against its pseudo-code, written down once more in the plainest way."""

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstale as fs
from fedstale.core import BadInput


def random_round(rng: np.random.Generator, t: int, n: int, d: int, p: np.ndarray, weights: np.ndarray) -> fs.Round:
    clients = np.flatnonzero(rng.random(n) < p)
    m = len(clients)
    updates = (rng.standard_normal((m, d)) + 1).astype(np.float32)
    nothing = np.zeros(d, np.float32), np.ones((m, 1), bool), np.zeros(m, np.float32)
    return fs.Round(t, nothing[0], clients, updates, nothing[1], nothing[2], weights, p)


class Plain:
    """The pseudo-code: sums over all clients, float64, one number after the other."""

    def __init__(self, n: int, d: int, gain: float, clip: float | None, decay: float) -> None:
        self.h, self.count, self.gain, self.clip = np.zeros((n, d)), [0] * n, gain, clip
        self.decay, self.residual = decay, np.zeros(d)
        self.A = self.B = self.n = 0.0
        self.total, self.β = 0, 0.5

    def step(self, r: fs.Round) -> np.ndarray:
        N, a, p = len(r.weights), r.weights.astype(float), r.probs.astype(float)
        base, C = self.β * (a @ self.h), self.residual
        dA = dB = 0.0
        e = 0
        for Δ, i in zip(r.updates.astype(float), r.clients, strict=True):
            rest = Δ - self.β * self.h[i]
            base = base + a[i] * rest
            C = C + a[i] * (1 / p[i] - 1) * rest
            if p[i] < 0.999 and self.count[i]:
                ω = (N * a[i]) ** 2 * (1 - p[i]) / p[i] ** 2
                dA, dB, e = dA + ω * (self.h[i] @ self.h[i]), dB + ω * (Δ @ self.h[i]), e + 1
        if self.clip and np.linalg.norm(C) > 0:
            whole, C = C, C * min(1, self.clip * np.linalg.norm(base) / np.linalg.norm(C))
            self.residual = self.decay * (whole - C)
        for Δ, i in zip(r.updates.astype(float), r.clients, strict=True):
            self.count[i] += 1
            self.h[i] += max(1 / self.count[i], self.gain) * (Δ - self.h[i])
        if e:
            fade = (1 - 1 / min(8, 3 * sum(p < 0.999))) ** e
            self.A, self.B, self.n = fade * self.A + dA, fade * self.B + dB, fade * self.n + e
            self.total += e
            k = max(0, 1 - self.total / 10)
            self.β = float(np.clip((self.n * self.B / self.A + 0.5 * k) / (self.n + k), 0, 1))
        return base + C


@given(
    seed=st.integers(0, 10**6),
    gain=st.sampled_from([1.0, 0.5]),
    clip=st.sampled_from([(None, 0.0), (1.0, 0.0), (0.5, 0.0), (1.0, 0.5), (0.5, 1.0)]),
    n=st.integers(2, 6),
)
def test_equals_the_pseudo_code(seed: int, gain: float, clip: tuple[float | None, float], n: int) -> None:
    rng, d = np.random.default_rng(seed), 7
    p = np.where(rng.random(n) < 0.3, 1.0, rng.uniform(0.05, 1, n)).astype(np.float32)
    weights = rng.dirichlet(np.ones(n)).astype(np.float32)
    strategy, plain = fs.SelfTuning(gain, *clip), Plain(n, d, gain, *clip)
    state = strategy.init(n, d)
    for t in range(1, 25):
        r = random_round(rng, t, n, d, p, weights)
        step, state = strategy.aggregate(state, r)
        np.testing.assert_allclose(step, plain.step(r), rtol=2e-4, atol=2e-4)
        assert state.beta == pytest.approx(plain.β, abs=1e-4)


@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_without_a_clip_it_is_unbiased_whatever_it_has_learned(gain: float) -> None:
    """The mean over all 2ⁿ patterns of who takes part, each with its probability, is the full step."""
    rng, n, d = np.random.default_rng(3), 4, 5
    p, weights = np.array([0.2, 0.5, 0.9, 1.0], np.float32), np.array([0.1, 0.4, 0.3, 0.2], np.float32)
    strategy = fs.SelfTuning(gain, clip=None)
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


def test_the_clip_bounds_what_the_inverse_weights_add() -> None:
    weights, p = np.array([0.5, 0.5], np.float32), np.array([1.0, 0.001], np.float32)
    updates = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    r = fs.Round(1, np.zeros(2, np.float32), np.arange(2), updates, np.ones((2, 1), bool), np.zeros(2), weights, p)
    free, clipped = (fs.SelfTuning(1.0, clip=c) for c in (None, 1.0))
    wild = free.aggregate(free.init(2, 2), r)[0]
    tame = clipped.aggregate(clipped.init(2, 2), r)[0]
    assert wild[1] == pytest.approx(500, rel=1e-4)
    assert np.linalg.norm(tame) < 2 * np.linalg.norm(weights)


def test_error_feedback_adds_what_the_clip_cut_in_later_rounds() -> None:
    """Without a decay nothing is lost: the steps of a run add up to those without a clip."""
    rng, n, d = np.random.default_rng(5), 4, 6
    p, weights = np.array([0.1, 1, 1, 1], np.float32), np.full(n, 0.25, np.float32)
    rules = {
        "free": fs.FedStale(0.0),
        "fed back": fs.SelfTuning(1.0, 0.5, 1.0, beta=0.0),
        "cut": fs.SelfTuning(1.0, 0.5, 0.0, beta=0.0),
    }
    states, sums = {k: rule.init(n, d) for k, rule in rules.items()}, dict.fromkeys(rules, np.zeros(d))
    for t in range(1, 31):
        here = np.arange(n) if t == 5 else np.arange(1, n)  # the rare one comes once
        updates = (1 + 0.1 * rng.standard_normal((len(here), d))).astype(np.float32)
        r = random_round(rng, t, n, d, np.zeros(n), weights)._replace(
            clients=here, updates=updates, arrived=np.ones((len(here), 1), bool), probs=p
        )
        for k, rule in rules.items():
            step, states[k] = rule.aggregate(states[k], r)
            sums[k] = sums[k] + step
    np.testing.assert_allclose(sums["fed back"], sums["free"], rtol=1e-5)
    assert np.linalg.norm(sums["cut"] - sums["free"]) > 0.01 * np.linalg.norm(sums["free"])
    assert not states["fed back"].residual.any()


def test_the_residual_is_added_in_rounds_without_anybody_too() -> None:
    n, d, weights, p = 2, 3, np.full(2, 0.5, np.float32), np.array([0.01, 1.0], np.float32)
    rule, rng = fs.SelfTuning(1.0, 1.0, 1.0, beta=1.0), np.random.default_rng(1)
    state = rule.init(n, d)
    everybody = random_round(rng, 1, n, d, np.ones(n), weights)._replace(probs=p)
    _, state = rule.aggregate(state, everybody)
    before, rest = state.residual.copy(), state.memory.total.astype(np.float32)
    step, state = rule.aggregate(state, random_round(rng, 2, n, d, np.zeros(n), weights)._replace(probs=p))
    np.testing.assert_allclose(step - rest, before - state.residual, rtol=1e-4)
    assert np.linalg.norm(step - rest) == pytest.approx(np.linalg.norm(rest), rel=1e-5)


@given(
    seed=st.integers(0, 10**6),
    clip=st.sampled_from([(None, 0.0), (1.0, 0.0), (1.0, 0.5)]),
    kind=st.sampled_from(["zero", "same", "huge"]),
)
def test_stays_finite_with_rare_clients_and_odd_updates(
    seed: int, clip: tuple[float | None, float], kind: str
) -> None:
    rng, n, d = np.random.default_rng(seed), 5, 3
    p = np.array([0.001, 0.01, 0.3, 0.999, 1.0], np.float32)
    strategy = fs.SelfTuning(0.5, *clip)
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

    def end(rule: fs.Strategy) -> float:
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
        strategy = fs.SelfTuning(1.0, clip=None)
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
        ({"beta": 2.0}, r"beta must be in \[0, 1\] or None, got 2.0"),
        ({"gain": 0.0}, r"gain must be in \(0, 1\], got 0.0"),
        ({"gain": "x"}, "gain must be a number, got 'x'"),
        ({"clip": 0.0}, "clip must be above 0 or None, got 0.0"),
        ({"clip": [1]}, "clip must be a number"),
        ({"residual_decay": 1.5}, r"residual_decay must be in \[0, 1\], got 1.5"),
        ({"residual_decay": True}, "residual_decay must be a number, got true"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        fs.SelfTuning(**settings)


def test_the_recipes_are_its_defaults_and_its_unbiased_form() -> None:
    assert fs.recipe("auto").strategy == fs.SelfTuning()
    assert fs.recipe("auto-unbiased").strategy == fs.SelfTuning(gain=0.5, clip=None, residual_decay=0)


@given(seed=st.integers(0, 10**6), beta=st.sampled_from([0.0, 0.3, 1.0]))
def test_with_a_fixed_beta_and_nothing_else_it_is_fedstale(seed: int, beta: float) -> None:
    rng, n, d = np.random.default_rng(seed), 4, 5
    p, weights = np.array([0.2, 0.5, 0.9, 1.0], np.float32), np.full(n, 0.25, np.float32)
    rules = [fs.FedStale(beta), fs.SelfTuning(gain=1.0, clip=None, beta=beta)]
    states = [rule.init(n, d) for rule in rules]
    for t in range(1, 12):
        r = random_round(rng, t, n, d, p, weights)
        (x, states[0]), (y, states[1]) = (rule.aggregate(s, r) for rule, s in zip(rules, states, strict=True))
        np.testing.assert_array_equal(x, y)


def test_a_client_that_was_forgotten_is_remembered_anew_as_a_newcomer_is() -> None:
    """Its next update counts whole, not as one more of many."""
    strategy, half = fs.SelfTuning(0.25, None, 0.0), np.full(2, 0.5, np.float32)
    state, along = strategy.init(2, 2), np.eye(2, dtype=np.float32)

    def heard(t: int, clients: list[int], rows: object) -> fs.Round:
        updates, m = np.asarray(rows, np.float32).reshape(len(clients), 2), len(clients)
        return fs.Round(t, np.zeros(2, np.float32), np.array(clients, np.int64), updates,
                        np.ones((m, 1), bool), np.zeros(m, np.float32), half, half)  # fmt: skip

    for t in range(1, 4):
        _, state = strategy.aggregate(state, heard(t, [0, 1], [[5, 0], along[1]]))
    state = strategy.forget(state, np.array([0]))
    _, state = strategy.aggregate(state, heard(4, [0], along[:1]))
    step, _ = strategy.aggregate(state, heard(5, [], []))
    assert step[1] > 0
    assert step[0] == pytest.approx(step[1])

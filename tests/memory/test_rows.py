"""Rows in fewer bytes: close to what was meant, exact on average, and the sum is that of the rows as they are."""

import importlib.util
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstale.memory.memory as passes
from fedstale.core import BadInput, Round
from fedstale.engines import kernels
from fedstale.memory import Coding, Float16, Float32, Int8, Memory
from fedstale.memory.rows import keys
from fedstale.strategies import MIFA, FedStale, FedVARP
from fedstale.testing import check_strategy

CODINGS = [Float32(), Float16(), Int8()]
every_coding = pytest.mark.parametrize("coding", CODINGS, ids=lambda c: type(c).__name__)
NUMBA = importlib.util.find_spec("numba") is not None


def round_of(t: int, clients: Any, updates: Any, weights: Any, arrived: Any = None, probs: Any = None) -> Round:
    updates, weights = np.asarray(updates, np.float32), np.asarray(weights, np.float32)
    arrived = np.ones((len(updates), 1), np.bool_) if arrived is None else arrived
    none = np.zeros(len(updates), np.float32)
    return Round(t, updates[:0].sum(0), np.asarray(clients), updates, arrived, none, weights, weights * 0 + 0.5)


def history(seed: int, n: int, d: int, rounds: int) -> list[Round]:
    """Random rounds of updates of very different size: whole, lost and cut, NaN where nothing arrived."""
    rng, made = np.random.default_rng(seed), []
    for t in range(1, rounds + 1):
        clients = np.flatnonzero(rng.random(n) < 0.7)
        m = len(clients)
        arrived = [np.ones((m, 1), np.bool_), rng.random((m, 1)) < 0.7, rng.random((m, d)) < rng.choice([0.6, 1.0])]
        numbers = rng.standard_normal((m, d)) * 10.0 ** rng.integers(-8, 9, (m, 1))
        seen = arrived[t % 3]
        weights = rng.random(n) if rng.random() < 0.2 or not made else made[-1].weights
        made.append(round_of(t, clients, np.where(seen, numbers, np.nan), weights, seen))
    return made


def played(
    coding: Coding, rounds: list[Round], n: int, d: int, gain: float = 1.0
) -> tuple[Memory, list[np.ndarray]]:
    memory, steps = Memory.zeros(n, d, coding), []
    for r in rounds:
        steps.append(0.3 * memory.weighted_sum(r.weights))
        fresh = np.linspace(0.5, 2, len(r.clients))
        memory.correct(steps[-1], r, fresh=fresh, stale=0.3, gain=gain)
    return memory, steps


@every_coding
@given(seed=st.integers(0, 2**32), n=st.integers(1, 5), d=st.integers(1, 9), gain=st.sampled_from([1.0, 0.4]))
def test_step_and_sum_are_those_of_the_decoded_rows(coding: Coding, seed: int, n: int, d: int, gain: float) -> None:
    memory, rows, ever = Memory.zeros(n, d, coding), np.zeros((n, d)), 1.0
    off = {Float32: 1e-6, Float16: 2.0**-11, Int8: 1 / 126.9}[type(coding)]
    for r in history(seed, n, d, 9):
        m, step = len(r.clients), np.zeros(d)
        c, seen = np.linspace(0.5, 2, m)[:, None], np.broadcast_to(r.arrived, (m, d))
        memory.correct(step, r, fresh=c[:, 0], stale=0.3, gain=gain)
        old = rows[r.clients]
        Δ = np.where(seen, r.updates, old)
        ever = max(ever, np.abs(Δ).max(initial=0))  # what was largest leaves its rounding in the sum
        due = np.where(seen, c * (Δ - 0.3 * old), 0).sum(axis=0)
        np.testing.assert_allclose(step, due, rtol=0, atol=1e-6 * np.abs(c * (np.abs(Δ) + np.abs(old))).sum())
        meant = np.where(gain == 1, Δ, old + gain * (Δ - old))
        allowed = off * np.abs(meant).max(axis=1, initial=0, keepdims=True) + (gain != 1) * 1e-6 * np.abs(Δ - old)
        rows = memory.rows.astype(np.float64)
        assert (np.abs(rows[r.clients] - meant) <= allowed).all()
        np.testing.assert_allclose(memory.total, r.weights.astype(np.float64) @ rows, rtol=0, atol=1e-14 * ever)


@every_coding
def test_the_sum_is_exact_to_float64(coding: Coding) -> None:
    """Updates of like size: what a thousand writes leave is no more than their rounding in float64."""
    rng, n, d = np.random.default_rng(0), 7, 33
    memory, weights = Memory.zeros(n, d, coding), (rng.random(n) / 4).astype(np.float32)
    for t in range(1, 1000):
        memory.remember(round_of(t, [t % n], rng.standard_normal((1, d)), weights))
    np.testing.assert_allclose(memory.total, weights.astype(np.float64) @ memory.rows, rtol=0, atol=1e-13)


@every_coding
def test_rows_that_are_hard_to_scale(coding: Coding) -> None:
    """Zero, tiny, huge and both signs; a row of zeros after a large one is zero."""
    rows = np.array([[0, 0, 0], [1e-38, -1e-40, 0], [3e38, -3e38, 1], [-1, 0, 1e-9], [1, -1, 127]], np.float32)
    memory, largest = Memory.zeros(5, 3, coding), np.abs(rows.astype(np.float64)).max(axis=1)
    for t in (1, 2):
        memory.remember(round_of(t, np.arange(5), rows, np.ones(5)))
        error = np.abs(memory.rows.astype(np.float64) - rows)
        assert (error <= np.maximum(largest / 126, 1e-30)[:, None]).all()
        assert np.isfinite(memory.total).all()
    memory.remember(round_of(3, np.arange(5), 0 * rows, np.ones(5)))
    assert not memory.rows.any()
    assert np.abs(memory.total).max() < 1e-15 * 3e38


def test_float16_keeps_its_precision_whatever_the_size_of_the_row() -> None:
    rng = np.random.default_rng(0)
    shape = rng.standard_normal(200).astype(np.float32)
    memory = Memory.zeros(1, 200, Float16())
    for t, scale in enumerate([1e-20, 1e-6, 1.0, 1e6, 1e30], 1):
        memory.remember(round_of(t, [0], [scale * shape], [1.0]))
        assert (np.abs(memory.row(0) - np.float32(scale) * shape) <= 2.0**-11 * scale * np.abs(shape) * 1.001).all()


def test_int8_is_unbiased_and_its_variance_is_that_of_rounding() -> None:
    """Over T rounds the mean is within 5 standard errors, and the variance is f (1 - f) scale²."""
    T, d = 4000, 60
    row = np.random.default_rng(3).standard_normal(d).astype(np.float32)
    memory, seen = Memory.zeros(1, d, Int8()), np.empty((T, d))
    for t in range(1, T + 1):
        memory.remember(round_of(t, [0], [row], [1.0]))
        seen[t - 1] = memory.row(0)
    scale = float(memory.scales[0])
    share = row / scale - np.floor(row / scale)
    variance = share * (1 - share) * scale**2
    assert (np.abs(seen.mean(axis=0) - row) < 5 * np.sqrt(variance / T) + 1e-6).all()
    assert abs(seen.mean() - row.mean()) < 4 * np.sqrt(variance.sum() / T) / d + 1e-6
    np.testing.assert_allclose(seen.var(axis=0).sum(), variance.sum(), rtol=0.03)  # 4 of its standard errors


def test_rounding_is_independent_between_clients_rounds_and_coordinates() -> None:
    """Correlations of the roundings of ½ are within 5 standard errors of none."""
    n, d, T = 40, 50, 40
    memory, row = Memory.zeros(n, d, Int8()), np.full((n, d), 0.5, np.float32)
    row[:, 0] = 126.999  # the scale is 1, up to rounding
    ups = np.empty((T, n, d - 1))
    for t in range(1, T + 1):
        memory.remember(round_of(t, np.arange(n), row, np.ones(n)))
        ups[t - 1] = 2 * memory.rows[:, 1:] - 1
    assert set(np.unique(ups.round(3))) == {-1.0, 1.0}
    for a, b in ((ups[1:], ups[:-1]), (ups[:, 1:], ups[:, :-1]), (ups[:, :, 1:], ups[:, :, :-1])):
        assert abs((a * b).sum()) < 5 * np.sqrt(a.size)
    for axis in product((False, True), repeat=3):
        kept = tuple(k for k, on in enumerate(axis) if on)
        sums = ups.sum(axis=kept)
        assert np.abs(sums).max() < 5.5 * np.sqrt(ups.size / sums.size)


def test_keys_differ_between_clients_and_rounds() -> None:
    made = np.concatenate([keys(np.arange(1000), t) for t in range(1, 51)])
    assert len(np.unique(made, axis=0)) == len(made)
    assert (made[:, 1] % 2 == 1).all()


@every_coding
@pytest.mark.parametrize("β", [0.0, 0.5, 1.0])
def test_fedstale_is_unbiased_whatever_the_rows_have_become(coding: Coding, β: float) -> None:
    """Over all sets of participants, by their probability, the step is Σ a_i Δ_i."""
    n, d, rng = 3, 4, np.random.default_rng(1)
    strategy, weights = FedStale(β, memory=coding), np.array([0.2, 0.3, 0.5], np.float32)
    p = np.array([0.3, 0.6, 0.9], np.float32)
    before = rng.standard_normal((n, d))
    updates, mean = rng.standard_normal((n, d)).astype(np.float32), np.zeros(d)
    for present in product((False, True), repeat=n):
        who = np.flatnonzero(present)
        state = strategy.init(n, d)
        state.remember(round_of(1, np.arange(n), before, weights))
        step, _ = strategy.aggregate(state, round_of(2, who, updates[who], weights)._replace(probs=p))
        mean += np.prod(np.where(present, p, 1 - p), dtype=np.float64) * step
    np.testing.assert_allclose(mean, weights @ updates, atol=1e-6)


@pytest.mark.parametrize("coding", CODINGS[:2], ids=["Float32", "Float16"])
@pytest.mark.parametrize("strategy", [FedStale, MIFA, FedVARP])
def test_strategies_keep_their_promises_with_every_coding(strategy: Any, coding: Coding) -> None:
    check_strategy(strategy(memory=coding))


@pytest.mark.parametrize("strategy", [FedStale, MIFA, FedVARP])
@pytest.mark.parametrize(
    ("value", "told"), [("int8", "'int8'"), (None, "None"), (8, "8"), (Int8, "<class"), (MIFA(), "MIFA")]
)
def test_what_is_no_coding_is_refused(strategy: Any, value: Any, told: str) -> None:
    with pytest.raises(BadInput, match=f"memory must be a Coding, got {told}"):
        strategy(memory=value)


def test_the_memory_can_average() -> None:
    """With gain 1/k in the k-th round, the row is the mean of the updates."""
    updates = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
    memory = Memory.zeros(2, 6)
    for k, update in enumerate(updates, 1):
        memory.remember(round_of(k, [1], [update], [0.5, 0.5]), gain=1 / k)
    np.testing.assert_allclose(memory.row(1), updates.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(memory.total, memory.row(1) / 2, atol=1e-12)


@every_coding
@given(seed=st.integers(0, 2**32), n=st.integers(1, 5), d=st.integers(1, 9))
def test_a_measured_pass_tells_of_the_rows_before(coding: Coding, seed: int, n: int, d: int) -> None:
    memory, other = Memory.zeros(n, d, coding), Memory.zeros(n, d, coding)
    for r in history(seed, n, d, 9):
        m, steps = len(r.clients), np.zeros((2, d))
        seen, excess = np.broadcast_to(r.arrived, (m, d)), np.linspace(-1, 2, m).astype(np.float32)
        h = np.where(seen, memory.rows[r.clients], 0).astype(np.float64)
        Δ = np.where(seen, r.updates, 0).astype(np.float64)
        centre = np.arange(d, dtype=np.float32)
        told = memory.update_and_measure(steps[0], r, fresh=0.5, stale=0.3, gain=0.4, excess=excess, centre=centre)
        other.correct(steps[1], r, fresh=0.5, stale=0.3, gain=0.4)
        assert steps[0].tobytes() == steps[1].tobytes()  # measuring changes nothing
        assert memory.total.tobytes() == other.total.tobytes()
        size, (x, y) = (np.abs(Δ) + np.abs(h)).max(initial=0) + d, (np.where(seen, z - centre, 0) for z in (Δ, h))
        np.testing.assert_allclose(told.dots, (x * y).sum(axis=1), rtol=1e-5, atol=1e-5 * size**2)
        np.testing.assert_allclose(told.squares, (y * y).sum(axis=1), rtol=1e-5, atol=1e-5 * size**2)
        np.testing.assert_allclose(told.extra, excess @ (Δ - 0.3 * h), rtol=1e-5, atol=1e-5 * size)


@pytest.mark.skipif(not NUMBA, reason="numba is not installed")
@every_coding
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), d=st.sampled_from([1, 50, 65535, 65537]), gain=st.sampled_from([1.0, 0.4]))
def test_the_fused_pass_has_the_bits_of_numpy(coding: Coding, seed: int, d: int, gain: float) -> None:
    rounds, found = history(seed, 4, d, 5), []
    for worthwhile in (0, 1 << 62):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(passes, "WORTHWHILE", worthwhile)
            patch.setattr(passes, "LOADED", "")
            memory, steps = played(coding, rounds, 4, d, gain)
        found.append([*steps, memory.total, memory.rows, memory.scales])
    for fused, plain in zip(*found, strict=True):
        assert fused.tobytes() == plain.tobytes()


@pytest.mark.skipif(not NUMBA, reason="numba is not installed")
@every_coding
def test_neither_numba_nor_threads_show_in_what_is_told(coding: Coding, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, found = history(3, 5, 70_000, 7), []
    monkeypatch.setattr(passes, "LOADED", "")
    for worthwhile, share in ((1 << 62, 1), (0, 1 << 62), (0, 1)):
        monkeypatch.setattr(passes, "WORTHWHILE", worthwhile)
        monkeypatch.setattr(passes, "SHARE", share)
        monkeypatch.setattr(passes, "cores", lambda: 3)
        memory, told, centre = Memory.zeros(5, 70_000, coding), [], np.zeros(70_000, np.float32)
        for r in rounds:
            step = np.zeros(70_000)
            seen = memory.update_and_measure(step, r, fresh=0.5, stale=0.3, gain=0.4, excess=1.5, centre=centre)
            centre = seen.extra.astype(np.float32)
            told += [step, seen.extra, seen.dots, seen.squares]
        found.append([*told, memory.total, memory.rows])
    for plain, alone, shared in zip(*found, strict=True):
        assert plain.tobytes() == alone.tobytes() == shared.tobytes()


@pytest.mark.skipif(not NUMBA, reason="numba is not installed")
def test_a_small_round_takes_the_compiled_pass_once_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(passes, "load", lambda *case: asked.append(case))
    for module in ("fedstale.no_such_module", "fedstale.memory.memory"):
        monkeypatch.setattr(passes, "LOADED", module)
        played(Float32(), history(2, 4, 30, 1), 4, 30)
    assert asked == [("rows", "float32")]


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = history(5, 6, 40, 6)
    monkeypatch.setattr(passes, "LOADED", "")
    for coding in CODINGS:
        whole = played(coding, rounds, 6, 40)
        for block in (1, 7, 64, 150):
            monkeypatch.setattr(passes, "BLOCK", block)
            for x, y in zip(whole[1], played(coding, rounds, 6, 40)[1], strict=True):
                assert x.tobytes() == y.tobytes()


def test_numpy_does_it_where_there_is_no_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    rounds = history(2, 4, 30, 5)
    plain = played(Int8(), rounds, 4, 30)
    monkeypatch.setattr(kernels, "import_module", missing)
    monkeypatch.setattr(passes, "WORTHWHILE", 0)
    kernels.load.cache_clear()
    try:
        for x, y in zip(plain[1], played(Int8(), rounds, 4, 30)[1], strict=True):
            assert x.tobytes() == y.tobytes()
    finally:
        kernels.load.cache_clear()

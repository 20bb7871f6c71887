"""The memory: the last update of everybody, and a running sum that is never off."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstale.core import Round
from fedstale.memory import Coding, Float16, Float32, Int8, Memory


def weights_of(rng: np.random.Generator, n: int) -> np.ndarray:
    weights = rng.random(n)
    return (weights / weights.sum()).astype(np.float32)


def summed(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return weights.astype(np.float64) @ np.asarray(rows, np.float64)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 5), st.integers(1, 60))
def test_rows_sum_and_age_are_those_of_the_writes(seed: int, n: int, d: int, writes: int) -> None:
    """Whole and cut updates, weights that change, NaN where nothing arrived."""
    rng = np.random.default_rng(seed)
    memory, rows, written, weights = Memory.zeros(n, d), np.zeros((n, d)), np.zeros(n), weights_of(rng, n)
    memory.weighted_sum(weights)
    for t in range(1, writes + 1):
        if rng.random() < 0.3:
            weights = weights_of(rng, n)
            memory.weighted_sum(weights)
        i, wide = int(rng.integers(n)), rng.random() < 0.5
        arrived = rng.random(d if wide else 1) < 0.7
        update = np.where(arrived, rng.standard_normal(d), np.nan).astype(np.float32)
        memory.write(i, update, arrived, t)
        rows[i] = np.where(arrived, update, rows[i])
        written[i] = t if arrived.any() else written[i]
        np.testing.assert_allclose(memory.weighted_sum(weights), summed(weights, rows), rtol=0, atol=1e-12)
        assert memory.known_weight(weights) == weights[written > 0].sum(dtype=np.float64)
    np.testing.assert_array_equal(memory.rows, rows.astype(np.float32))
    np.testing.assert_array_equal(memory.written, written)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_thousands_of_writes_do_not_wear_the_sum(scale: float) -> None:
    """Each write adds a rounding error of 2⁻⁵³ of the sum, so 2000 add less than 1e-11 of the largest."""
    rng, n, d = np.random.default_rng(0), 7, 11
    memory, weights = Memory.zeros(n, d), weights_of(np.random.default_rng(1), n)
    memory.weighted_sum(weights)
    for t in range(1, 2001):
        update = (scale * rng.standard_normal(d)).astype(np.float32)
        memory.write(int(rng.integers(n)), update, rng.random(d) < 0.5, t)
    apart = np.abs(memory.weighted_sum(weights) - summed(weights, memory.rows))
    assert (apart < 1e-11 * scale).all()


def test_other_weights_sum_anew() -> None:
    memory = Memory.zeros(3, 2)
    memory.weighted_sum(np.array([1, 0, 0], np.float32))
    memory.write(0, np.array([1, 2], np.float32), np.ones(1, bool), 1)
    memory.write(1, np.array([10, 20], np.float32), np.ones(1, bool), 1)
    np.testing.assert_array_equal(memory.weighted_sum(np.array([1, 0, 0], np.float32)), [1, 2])
    np.testing.assert_array_equal(memory.weighted_sum(np.array([0, 0.5, 0.5], np.float32)), [5, 10])
    np.testing.assert_array_equal(memory.weighted_sum(np.array([1, 0, 0], np.float32)), [1, 2])


@pytest.mark.parametrize("coding", [Float32(), Float16(), Int8()])
def test_forgotten_rows_are_as_before_the_first_update(coding: Coding) -> None:
    memory, weights = Memory.zeros(5, 7, coding), np.full(5, 0.2, np.float32)
    draw, some = np.random.default_rng(1), np.ones((3, 1), np.bool_)
    none = np.zeros(0, np.float32)
    rows = draw.standard_normal((3, 7)).astype(np.float32)
    memory.remember(Round(4, none, np.array([0, 2, 3]), rows, some, none, weights, none))
    memory.forget(np.array([1, 2, 3]))
    assert memory.written.tolist() == [4, 0, 0, 0, 0]
    assert not memory.rows[1:].any()
    np.testing.assert_allclose(memory.weighted_sum(weights), weights @ memory.rows.astype(np.float64), atol=1e-7)


def test_a_row_that_was_read_stays_as_it_was() -> None:
    memory = Memory.zeros(2, 3)
    memory.write(1, np.ones(3, np.float32), np.ones(1, np.bool_), 1)
    before = memory.row(1)
    memory.write(1, np.full(3, 5, np.float32), np.ones(1, np.bool_), 2)
    assert before.tolist() == [1, 1, 1]


def test_a_write_touches_one_row_and_copies() -> None:
    memory, update = Memory.zeros(3, 2), np.array([1, 2], np.float32)
    memory.weighted_sum(np.full(3, 1 / 3, np.float32))
    memory.write(1, update, np.ones(1, bool), 4)
    update[:] = 7
    np.testing.assert_array_equal(memory.rows, [[0, 0], [1, 2], [0, 0]])
    np.testing.assert_array_equal(memory.written, [0, 4, 0])


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_a_copy_goes_on_alike_and_apart(seed: int) -> None:
    rng, weights = np.random.default_rng(seed), np.array([0.25, 0.75], np.float32)
    memory = Memory.zeros(2, 3)
    memory.weighted_sum(weights)
    memory.write(0, rng.standard_normal(3).astype(np.float32), np.ones(1, bool), 1)
    copies = [copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))]
    before = memory.rows.copy()
    for other in copies:
        other.weighted_sum(weights.copy())
        other.write(1, np.ones(3, np.float32), np.ones(1, bool), 2)
    np.testing.assert_array_equal(memory.rows, before)
    memory.write(1, np.ones(3, np.float32), np.ones(1, bool), 2)
    for other in copies:
        np.testing.assert_array_equal(other.rows, memory.rows)
        np.testing.assert_array_equal(other.weighted_sum(weights.copy()), memory.weighted_sum(weights))


def test_the_weight_of_the_written_rows_is_kept_only_where_float64_adds_it_exactly() -> None:
    """A tiny weight is summed anew in every round, in the order of the clients; so are those after a `forget`."""
    there = np.ones(1, np.bool_)
    for tiny, kept in ((1e-3, True), (1e-12, False)):
        weights = np.full(1000, tiny, np.float32)
        memory = Memory.zeros(1000, 2)
        for t, i in enumerate(np.random.default_rng(1).permutation(1000)[:300].tolist(), 1):
            memory.write(i, np.ones(2, np.float32), there, t)
            assert memory.known_weight(weights) == weights[memory.written > 0].sum(dtype=np.float64)
            assert (memory.known is not None) == kept
        memory.forget(np.flatnonzero(memory.written)[:7])
        assert memory.known_weight(weights) == weights[memory.written > 0].sum(dtype=np.float64)

"""Streams: the name decides, and nothing else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core.rng import stream

seeds = st.integers(0, 2**63)
words = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=5)
names = st.lists(words | st.integers(0, 10_000), max_size=4)


@given(seeds, names, st.integers(0, 50))
def test_the_name_decides_not_the_order(seed: int, name: list[str | int], drawn_before: int) -> None:
    first = stream(seed, *name).random(4)
    stream(seed, *name, "other").random(drawn_before)
    np.testing.assert_array_equal(stream(seed, *name).random(4), first)


@given(seeds, names, seeds, names)
def test_other_names_give_other_numbers(
    seed: int, name: list[str | int], other_seed: int, other: list[str | int]
) -> None:
    same = (seed, *name) == (other_seed, *other)
    assert np.array_equal(stream(seed, *name).random(4), stream(other_seed, *other).random(4)) == same


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_numpy_integers_are_integers(seed: int, t: int) -> None:
    plain = stream(seed, "local", t).random(4)
    np.testing.assert_array_equal(stream(np.int64(seed), "local", np.int64(t)).random(4), plain)
    np.testing.assert_array_equal(stream(np.int32(seed), "local", np.uint32(t)).random(4), plain)


def test_streams_stay_what_they_are() -> None:
    """Stored runs are resumed by later versions: these numbers must not change."""
    np.testing.assert_array_equal(stream(1, "local", 2, 3).integers(0, 1000, 5), [58, 776, 605, 597, 277])


def test_streams_are_uniform_and_unrelated() -> None:
    """Means of 1000 neighbouring streams: uniform numbers have mean 1/2 and variance 1/12."""
    draws = np.array([stream(0, "local", t, 7).random(10) for t in range(1000)])
    assert abs(draws.mean() - 0.5) < 4 * np.sqrt(1 / 12 / draws.size)
    related = np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]
    assert abs(related) < 4 / np.sqrt(draws.size)

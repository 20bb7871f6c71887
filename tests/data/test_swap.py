import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput
from fedstale.data.swap import LabelSwap, ReleasedSwap

Y = np.tile(np.arange(10), 70)  # (700,)
CLIENTS = np.split(np.random.default_rng(1).permutation(700), 5)  # uneven in labels


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def moved(before: np.ndarray, after: np.ndarray, samples: np.ndarray, a: int, b: int) -> tuple[int, int]:
    """How many of the samples of label a are now b, and of how many."""
    held = samples[before[samples] == a]
    assert set(after[held].tolist()) <= {a, b}
    return int((after[held] == b).sum()), len(held)


@given(st.floats(0, 1), st.integers(0, 9), st.integers(0, 9), st.integers(0, 99))
def test_the_rare_group_swaps_its_fraction_of_two_labels(fraction, a, b, seed):
    if a == b:
        return
    after = LabelSwap(fraction, (a, b)).apply(Y, CLIENTS, rng(seed))
    for i, samples in enumerate(CLIENTS):
        for x, z in ((a, b), (b, a)):
            count, held = moved(Y, after, samples, x, z)
            assert count == (round(fraction * held) if i >= 3 else 0)  # the last 5 // 2 clients
    others = ~np.isin(Y, [a, b])
    assert (after[others] == Y[others]).all()
    assert np.array_equal(after, LabelSwap(fraction, (a, b)).apply(Y, CLIENTS, rng(seed)))


def test_the_labels_given_are_left_alone_and_which_samples_is_chance():
    before = Y.copy()
    one, two = (LabelSwap(0.5).apply(Y, CLIENTS, rng(seed)) for seed in (0, 1))
    assert (before == Y).all()
    assert (one != two).any()


def test_one_client_swaps_nothing():
    assert (LabelSwap(1.0).apply(Y, [np.arange(700)], rng()) == Y).all()


@pytest.mark.parametrize("fraction", [0.0, 0.4, 1.0])
def test_the_released_code_swaps_at_every_client_by_parity(fraction):
    after = ReleasedSwap(fraction, even=(3, 5), odd=(2, 6)).apply(Y, CLIENTS, rng())
    for i, samples in enumerate(CLIENTS):
        for pair, used in (((3, 5), i % 2 == 0), ((2, 6), i % 2 == 1)):
            for x, z in (pair, pair[::-1]):
                count, held = moved(Y, after, samples, x, z)
                assert count == (round(fraction * held) if used else 0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LabelSwap(1.2), r"fraction must be in \[0, 1\], got 1.2"),
        (lambda: LabelSwap(0.5, (4, 4)), r"labels must be two different labels, got \(4, 4\)"),
        (lambda: LabelSwap(0.5, (-1, 4)), "labels must be"),
        (lambda: ReleasedSwap(-0.1), "fraction must be"),
        (lambda: ReleasedSwap(0.1, odd=(1, 1)), "odd must be"),
        (lambda: ReleasedSwap(0.1, even=(1, 1)), "even must be"),
        (lambda: LabelSwap(0.5, (0, 12)).apply(Y, CLIENTS, rng()), r"labels that the data have, got \[12\]"),
        (lambda: ReleasedSwap(0.5, odd=(0, 12)).apply(Y, CLIENTS, rng()), r"got \[12\]"),
    ],
)
def test_what_makes_no_sense_is_refused(make, says):
    with pytest.raises(BadInput, match=says):
        make()

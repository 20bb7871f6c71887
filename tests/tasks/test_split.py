import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstale.core import BadInput, Local
from fedstale.core.rng import stream
from fedstale.tasks.local import minibatches
from fedstale.tasks.split import WEIGHTS, Split, by_samples, even


@settings(derandomize=True, deadline=None)
@given(size=st.integers(1, 40), batch=st.integers(1, 50), steps=st.integers(1, 12))
def test_no_sample_comes_again_before_all_have_come(size, batch, steps):
    drawn = minibatches(size, Local(0.1, steps, batch), stream(0, "x"))
    assert drawn.shape == (steps, min(batch, size))
    assert drawn.dtype == np.int64
    order = drawn.ravel()
    for start in range(0, len(order), size):
        epoch = order[start : start + size]
        assert len(np.unique(epoch)) == len(epoch)
        assert set(epoch.tolist()) <= set(range(size))


@settings(derandomize=True, deadline=None)
@given(size=st.integers(1, 40), batch=st.integers(1, 50), steps=st.integers(1, 12))
def test_minibatches_are_the_shuffles_of_the_generator_cut_in_equal_parts(size, batch, steps):
    rng, b = stream(3, "x"), min(batch, size)
    shuffles = np.concatenate([rng.permutation(size) for _ in range(steps * b // size + 1)])
    expected = shuffles[: steps * b].reshape(steps, b)
    assert np.array_equal(minibatches(size, Local(0.1, steps, batch), stream(3, "x")), expected)


def test_minibatches_take_no_more_shuffles_than_needed():
    used, expected = stream(0, "x"), stream(0, "x")
    minibatches(10, Local(0.1, steps=4, batch=5), used)  # two epochs, exactly
    expected.permutation(10), expected.permutation(10)
    assert used.integers(1 << 30) == expected.integers(1 << 30)


def test_longer_training_extends_shorter_training():
    short, long = (minibatches(7, Local(0.1, steps, 3), stream(0, "x")) for steps in (4, 9))
    assert np.array_equal(long[:4], short)


def test_weights():
    sizes = np.array([1, 3])
    assert np.array_equal(even(sizes), [1, 1])
    assert np.array_equal(by_samples(sizes), [1, 3])
    assert {"per-client": even, "per-sample": by_samples} == WEIGHTS


def test_joined_pairs_are_the_concatenated_form():
    pairs = [(np.full((k, 2), k), np.full(k, k, np.uint8)) for k in (2, 1, 3)]
    split = Split.joined(pairs)
    assert split.offsets.tolist() == [0, 2, 3, 6]
    assert split.sizes.tolist() == [2, 1, 3]
    assert split.y.tolist() == [2, 2, 1, 3, 3, 3]
    assert split.y.dtype == torch.int64


def test_data_are_not_copied():
    x, y = np.zeros((4, 2), np.float32), np.zeros(4, np.int64)
    split = Split.of(x, y, [0, 1, 4])
    x[0], y[0] = 7, 7
    assert split.x[0, 0] == 7
    assert split.y[0] == 7


def test_bytes_stay_bytes_and_doubles_become_floats():
    split = Split.of(np.zeros((2, 1), np.uint8), np.zeros(2), [0, 2])
    assert (split.x.dtype, split.y.dtype) == (torch.uint8, torch.float32)


def test_read_only_arrays_are_fine():
    x = np.zeros((2, 1), np.float32)
    x.flags.writeable = False
    assert Split.of(x, np.zeros(2, np.int64), [0, 2]).x.shape == (2, 1)


def test_means_per_client_with_an_empty_one_and_one_that_is_not_finite():
    split = Split.of(np.zeros((5, 1)), np.zeros(5), [0, 2, 2, 4, 5])
    means = split.means(np.array([1.0, 3.0, np.inf, 1.0, 5.0]))
    assert np.array_equal(means, [2.0, np.nan, np.inf, 5.0], equal_nan=True)


@pytest.mark.parametrize("offsets", [[0, 1], [1, 2], [0, 2, 1, 2], [0], [[0, 2]]])
def test_bad_offsets_are_refused(offsets):
    with pytest.raises(BadInput, match="offsets must rise from 0 to 2"):
        Split.of(np.zeros((2, 1)), np.zeros(2), offsets)


def test_missing_values_are_refused():
    gaps = np.array([[1.0], [np.nan]])
    for x, y in (
        (gaps, np.zeros(2)),
        ({"a": np.ones((2, 1)), "b": gaps}, np.zeros(2)),
        (np.ones((2, 1)), [0.0, np.inf]),
    ):
        with pytest.raises(BadInput, match="finite numbers, got nan or inf: fill in what is missing"):
            Split.of(x, y, [0, 2])


def test_inputs_without_targets_are_refused():
    with pytest.raises(BadInput, match="x and y must have a row for each sample, got 3 and 2"):
        Split.of(np.zeros((3, 1)), np.zeros(2), [0, 3])
    with pytest.raises(BadInput, match="client 1 must have as many targets as inputs, 2, got 3"):
        Split.joined([(np.zeros((2, 1)), np.zeros(2)), (np.zeros((2, 1)), np.zeros(3))])
    with pytest.raises(BadInput, match="at least one client"):
        Split.joined([])
    with pytest.raises(BadInput, match=r"one \(x, y\) pair per client, or one Dataset with a length, got ndarray"):
        Split.joined((np.zeros((2, 1)), np.zeros(2)))  # the samples of one client, not a list of clients

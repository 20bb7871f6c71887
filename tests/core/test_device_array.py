"""Arithmetic on a device: the numbers of numpy, and nothing that comes back unnoticed."""

import numpy as np
import pytest
import torch

from fedstale.core import DeviceArray, on_host, weighted_sum

X = np.random.default_rng(0).standard_normal((3, 4), np.float32)


def there(values: np.ndarray = X) -> DeviceArray:
    return DeviceArray(torch.tensor(values))


@pytest.mark.parametrize(
    "of",
    [
        lambda x: x + x, lambda x: x - 1, lambda x: 2.0 * x, lambda x: x / np.array([3.0]), lambda x: x / X,
        lambda x: np.array([2.0], np.float32) * x, lambda x: x * X[:, :1], lambda x: X - x, lambda x: x[1:],
        lambda x: x[np.array([True, False, True])], lambda x: x.astype(np.float32), lambda x: x.copy(),
    ],
)  # fmt: skip
def test_operators_are_those_of_numpy(of) -> None:
    got = of(there())
    assert isinstance(got, DeviceArray)
    assert got.shape == of(X).shape
    assert got.tensor.dtype == torch.float32
    np.testing.assert_array_equal(on_host(got), of(X).astype(np.float32))


def test_what_is_added_in_place_or_written_stays_in_its_memory() -> None:
    x = there()
    same, copied = x.tensor, x.copy()
    x += X
    x[0] = np.zeros(4)
    assert x.tensor is same or x.tensor.data_ptr() == same.data_ptr()
    np.testing.assert_array_equal(on_host(x), np.concatenate([np.zeros((1, 4)), 2 * X[1:]]).astype(np.float32))
    np.testing.assert_array_equal(on_host(copied), X)


@pytest.mark.parametrize("of", [np.asarray, np.square, np.median, np.isfinite, np.linalg.norm, lambda x: x @ X.T])
def test_whatever_else_numpy_does_is_refused(of) -> None:
    with pytest.raises(TypeError):
        of(there())


def test_rows_are_summed_with_weights_in_the_order_of_the_rows() -> None:
    weights = np.array([0.5, -2.0, 3.0])
    np.testing.assert_allclose(on_host(weighted_sum(weights, there())), weighted_sum(weights, X), rtol=1e-6)
    assert not on_host(weighted_sum(np.zeros(0), there(X[:0]))).any()


def test_a_checkpoint_has_its_numbers() -> None:
    np.testing.assert_array_equal(on_host(there(X[0]).restored(there().saved())), X)

import struct

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.data import datasets


def as_idx(array: np.ndarray) -> bytes:
    code = 8 if array.dtype == np.uint8 else 12
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def images(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), np.uint8)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
@pytest.mark.parametrize("shape", [(5,), (3, 8), (2, 4, 3)])
def test_idx_gives_back_what_was_written(dtype, shape):
    array = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    back = datasets.idx(as_idx(array))
    assert back.shape == shape
    assert (back == array).all()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "must start with"),
        (b"PK\x03\x04 something else", "must start with"),
        (b"\0\0\x0d\x01\0\0\0\x00", "type 8 or 12, got"),
        (as_idx(np.zeros(5, np.uint8))[:-1], "must have 13 bytes, got 12"),
    ],
)
def test_idx_refuses_what_it_is_not(content, says):
    with pytest.raises(BadInput, match=says):
        datasets.idx(content)


def test_mnist_is_training_then_test():
    train, test = images(4, 1), images(2, 2)
    labels = [np.array([3, 1, 4, 1], np.uint8), np.array([5, 9], np.uint8)]
    got = datasets.mnist([as_idx(a) for a in (train, labels[0], test, labels[1])])
    assert got.x.shape == (6, 1, 28, 28)
    assert (got.x[4:, 0] == test).all()
    assert got.y.tolist() == [3, 1, 4, 1, 5, 9]
    assert got.y.dtype == np.int64
    assert (got.n_train, got.writers) == (4, None)


def test_writers_are_column_2_and_the_longer_test_table_is_cut():
    train, test = images(4, 1), images(2, 2)
    tables = [np.arange(8 * rows, dtype=np.int32).reshape(rows, 8) + start for rows, start in ((4, 0), (3, 500))]
    parts = (train, np.zeros(4, np.uint8), test, np.zeros(2, np.uint8), *tables)
    got = datasets.mnist_writers([as_idx(a) for a in parts])
    assert got.writers is not None
    assert got.writers.tolist() == [2, 10, 18, 26, 502, 510]
    assert got.writers.dtype == np.int64


@pytest.mark.parametrize("labels", [1, 2])
def test_cifar_rows_are_labels_then_red_green_blue(labels):
    rows = np.random.default_rng(0).integers(0, 256, (5, labels + 3072), np.uint8)
    x, y, *_ = datasets.cifar([rows[:2].tobytes(), rows[2:].tobytes()], labels)
    assert x.shape == (5, 3, 32, 32)
    assert y.tolist() == rows[:, labels - 1].tolist()  # of coarse and fine, the fine
    assert x[3, 1, 0].tolist() == rows[3, labels + 1024 : labels + 1056].tolist()
    with pytest.raises(BadInput, match="rows of"):
        datasets.cifar([rows.tobytes()[:-1]], labels)

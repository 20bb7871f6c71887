"""From the bytes of the published formats to images (m, C, H, W) and labels (m,)."""

import math
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Ids, require

Pixels = npt.NDArray[np.uint8]
IDX_TYPES: dict[int, np.dtype[Any]] = {8: np.dtype(np.uint8), 12: np.dtype(">i4")}


class Samples(NamedTuple):
    """The official training set, then the official test set."""

    x: npt.NDArray[Any]  # (M, C, H, W) bytes of images, or other inputs (M, …)
    y: Ids  # (M,)
    n_train: int  # how many of the M are for training
    writers: Ids | None = None  # (M,) whose each sample is: who wrote or said it, or where it is from


def idx(content: bytes) -> npt.NDArray[Any]:
    """An array in LeCun's IDX format: 0, 0, type, number of axes, the big-endian axes, the values."""
    ok = len(content) >= 4 and content[:2] == b"\0\0" and content[2] in IDX_TYPES
    require(ok, f"an IDX file must start with 0, 0 and type 8 or 12, got {list(content[:3])}")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    dtype = IDX_TYPES[content[2]]
    size = start + dtype.itemsize * math.prod(shape)
    require(len(content) == size, f"an IDX file of shape {shape} must have {size} bytes, got {len(content)}")
    return np.frombuffer(content, dtype, offset=start).reshape(shape)


def cifar(contents: Sequence[bytes], labels: int) -> Samples:
    """CIFAR's binary rows: `labels` label bytes, of which the last is used, then three 32 × 32 planes.

    The first 50,000 rows are for training. CIFAR-10 has one label, CIFAR-100 a coarse and then a fine one.
    """
    width = labels + 3072
    for content in contents:
        require(len(content) % width == 0, f"a CIFAR file must be rows of {width} bytes, got {len(content)}")
    tables = [np.frombuffer(content, np.uint8).reshape(-1, width) for content in contents]
    x = np.concatenate([table[:, labels:] for table in tables]).reshape(-1, 3, 32, 32)
    return Samples(x, np.concatenate([table[:, labels - 1] for table in tables]).astype(np.int64), 50_000)


def mnist(contents: Sequence[bytes]) -> Samples:
    """MNIST and its likes: training images and labels, test images and labels."""
    x_train, y_train, x_test, y_test = map(idx, contents)
    x = np.concatenate([x_train, x_test])[:, None]
    return Samples(x, np.concatenate([y_train, y_test]).astype(np.int64), len(y_train))


def mnist_writers(contents: Sequence[bytes]) -> Samples:
    """MNIST with QMNIST's two label tables, whose rows follow MNIST's and whose column 2 is the writer."""
    samples = mnist(contents[:4])
    train, test = (idx(content)[:, 2] for content in contents[4:])
    rest = len(samples.y) - samples.n_train  # QMNIST's test set goes on where MNIST's ends
    writers = np.concatenate([train[: samples.n_train], test[:rest]]).astype(np.int64)
    return samples._replace(writers=writers)


cifar_10, cifar_100 = partial(cifar, labels=1), partial(cifar, labels=2)  # of CIFAR-100 the fine label


def digits(contents: Sequence[bytes]) -> Samples:
    """1,797 real handwritten digits of 8 × 8 pixels in 0..16, embedded in this package.

    The test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998),
    UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, licence CC BY 4.0; unchanged but
    for its packing. It has no official split, so that all of it counts as training data.
    """
    with files("fedstale.data").joinpath("digits.npz").open("rb") as opened, np.load(opened) as arrays:
        x, y = arrays["x"], arrays["y"].astype(np.int64)
    return Samples(x, y, len(y))

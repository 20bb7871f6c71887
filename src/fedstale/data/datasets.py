"""Real datasets by name: `load("mnist")`.

Files are looked for in the folder that the environment variable FEDSTALE_DATA names, then in the
user's cache folder, and else downloaded into the latter. They are read as published: IDX files, plain
or .gz, also where torchvision keeps them; CIFAR's binary version, as a folder or as its .tar.gz.
Every one is checked against its md5. Nothing is unpickled.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Ids, known, require
from fedstale.data import formats
from fedstale.data.download import Progress, quiet
from fedstale.data.files import official, read
from fedstale.data.formats import Samples


class Dataset(NamedTuple):
    """Labelled images, or any other inputs and targets: the official training set, then the official test set."""

    name: str
    x: npt.NDArray[Any]  # (M, C, H, W) bytes of images, or (M, …) numbers that a model takes as they are
    y: npt.NDArray[Any]  # (M,) class numbers, or (M, …) targets of another loss
    n_train: int  # how many of the M are the official training set
    classes: int
    mean: tuple[float, ...] = ()  # per channel, of pixels scaled to [0, 1]; empty: inputs are not scaled
    std: tuple[float, ...] = ()
    scale: float = 255.0  # the pixel value that stands for 1
    writers: Ids | None = None  # (M,) who wrote each sample, where known

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, x={self.x.dtype}{[*self.x.shape]}, n_train={self.n_train})"

    def at_resolution(self, height: int) -> "Dataset":
        """Smaller images of that height: each pixel is the mean of a square of pixels; mean and std stay."""
        got = f"inputs {self.x.shape[1:]} of {self.name}"
        require(self.x.ndim == 4, f"resolution needs images (C, H, W), got {got}")
        m, c, h, w = self.x.shape
        factor = h // height if height > 0 and h % height == 0 else 0
        ways = [h // f for f in range(1, h + 1) if h % f == 0 and w % f == 0]
        whole = factor > 0 and w % factor == 0
        require(whole, f"resolution must divide the {h} × {w} pixels of {self.name}: one of {ways}, got {height}")
        squares = self.x.reshape(m, c, height, factor, w // factor, factor)
        return self._replace(x=squares.mean((3, 5), dtype=np.float32))


class Entry(NamedTuple):
    """What `load` must know of a dataset."""

    about: str
    classes: int
    mean: tuple[float, ...]  # of the official training set
    std: tuple[float, ...]
    files: tuple[str, ...]  # their tables in officials.toml
    decode: Callable[[Sequence[bytes]], Samples]
    scale: float = 255.0


DATASETS = {
    "digits": Entry(
        "1,797 handwritten digits, 8 × 8 grey, 10 classes; embedded, no download",
        10, (0.3053,), (0.3760,), (), formats.digits, scale=16.0,
    ),
    "mnist": Entry(
        "70,000 handwritten digits, 28 × 28 grey, 10 classes",
        10, (0.1307,), (0.3081,), ("mnist",), formats.mnist,
    ),
    "mnist-writers": Entry(
        "mnist with the writer of each digit (836 people, from QMNIST), for the by-writer partition",
        10, (0.1307,), (0.3081,), ("mnist", "qmnist-labels"), formats.mnist_writers,
    ),
    "fashion-mnist": Entry(
        "70,000 pieces of clothing, 28 × 28 grey, 10 classes",
        10, (0.2860,), (0.3530,), ("fashion-mnist",), formats.mnist,
    ),
    "cifar-10": Entry(
        "60,000 photographs, 32 × 32 colour, 10 classes",
        10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), ("cifar-10",), formats.cifar_10,
    ),
    "cifar-100": Entry(
        "60,000 photographs, 32 × 32 colour, 100 classes (the fine labels)",
        100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), ("cifar-100",), formats.cifar_100,
    ),
    "shakespeare": Entry(
        "48,797 windows of 20 characters of Shakespeare and the one that follows, by speaker",
        65, (), (), ("shakespeare",), formats.speakers,
    ),
    "heart-disease": Entry(
        "920 patients of four hospitals, 15 numbers each, 2 classes",
        2, (), (), ("heart-cleveland", "heart-hungarian", "heart-switzerland", "heart-va"), formats.hospitals,
    ),
}  # fmt: skip


def load(name: str, progress: Progress = quiet) -> Dataset:
    """The dataset of that name; a download reports to `progress(file, bytes so far, bytes in all)`."""
    entry = DATASETS[known(name, DATASETS, "dataset")]
    x, y, n_train, writers = entry.decode(read(official(*entry.files), progress))
    return Dataset(name, x, y, n_train, entry.classes, entry.mean, entry.std, entry.scale, writers)

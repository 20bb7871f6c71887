"""Real datasets by name: `load("mnist")`.

Files are looked for in the folder that the environment variable FEDSTALE_DATA names, then in the
user's cache folder, and else downloaded into the latter. They are read as published: IDX files, plain
or .gz, also where torchvision keeps them; CIFAR's binary version, as a folder or as its .tar.gz.
Every one is checked against its md5. Nothing is unpickled.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, Ids, known, require
from fedstale.data.files import Progress, official, quiet, read

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


COLUMNS = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca",
           "thal", "num")  # fmt: skip
NUMBERS = ("age", "trestbps", "chol", "thalach", "oldpeak", "sex", "fbs", "exang")
KINDS = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}  # columns of categories
NEVER_ZERO = ("trestbps", "chol")  # 0 stands for a value that was not measured


def hospitals(contents: Sequence[bytes]) -> Samples:
    """Patients x (M, 15) with y = 1 where the disease was found, from one table for each hospital.

    Numbers have mean 0 and deviation 1 over all patients, and what is missing has the mean. Categories have a
    column each. slope, ca and thal are left out: outside Cleveland they are missing for most patients.
    """
    tables = [_table(content) for content in contents]
    whole = np.concatenate(tables)
    column = {name: whole[:, k] for k, name in enumerate(COLUMNS)}
    for name in NEVER_ZERO:
        column[name] = np.where(column[name] == 0, np.nan, column[name])
    scaled = [(v - np.nanmean(v)) / np.nanstd(v) for v in (column[name] for name in NUMBERS)]
    marked = [column[name] == kind for name, kinds in KINDS.items() for kind in kinds]
    x = np.nan_to_num(np.stack([*scaled, *marked], axis=1)).astype(np.float32)
    owners = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return Samples(x, (column["num"] > 0).astype(np.int64), len(x), owners)


def _table(content: bytes) -> Floats:
    """(patients, 14) of a file with commas, in which ? is missing."""
    rows = [line.split(",") for line in content.decode().split("\n") if line]
    wrong = next((len(row) for row in rows if len(row) != len(COLUMNS)), None)
    require(wrong is None, f"a patient must have {len(COLUMNS)} values, got {wrong}")
    return np.array([[np.nan if value == "?" else float(value) for value in row] for row in rows])


WINDOW = 20  # characters that are read before the one that is predicted


def speakers(contents: Sequence[bytes]) -> Samples:
    """Windows of the speeches of each speaker, x (M, 20), and the character that follows, y (M,).

    A play is blocks between empty lines, each a name with a colon and, below it, a speech. The speeches of a
    speaker are joined and cut into windows that do not overlap. Characters are numbered by their codes.
    """
    text = contents[0].decode()
    speeches: dict[str, list[str]] = {}
    for block in text.strip().split("\n\n"):
        name, _, speech = block.strip("\n").partition("\n")
        require(name.endswith(":"), f"a speech must stand below a name with a colon, got {name[:40]!r}")
        speeches.setdefault(name, []).append(speech)
    number = {c: k for k, c in enumerate(sorted({*text}))}
    rows, owners = [], []
    for k, said in enumerate(speeches.values()):
        codes = np.array([number[c] for c in "\n".join(said)], np.int64)
        whole = codes[: len(codes) // (WINDOW + 1) * (WINDOW + 1)].reshape(-1, WINDOW + 1)
        rows.append(whole)
        owners.append(np.full(len(whole), k))
    windows = np.concatenate(rows)
    return Samples(windows[:, :-1], windows[:, -1], len(windows), np.concatenate(owners))


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
        10, (0.3053,), (0.3760,), (), digits, scale=16.0,
    ),
    "mnist": Entry(
        "70,000 handwritten digits, 28 × 28 grey, 10 classes",
        10, (0.1307,), (0.3081,), ("mnist",), mnist,
    ),
    "mnist-writers": Entry(
        "mnist with the writer of each digit (836 people, from QMNIST), for the by-writer partition",
        10, (0.1307,), (0.3081,), ("mnist", "qmnist-labels"), mnist_writers,
    ),
    "fashion-mnist": Entry(
        "70,000 pieces of clothing, 28 × 28 grey, 10 classes",
        10, (0.2860,), (0.3530,), ("fashion-mnist",), mnist,
    ),
    "cifar-10": Entry(
        "60,000 photographs, 32 × 32 colour, 10 classes",
        10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), ("cifar-10",), cifar_10,
    ),
    "cifar-100": Entry(
        "60,000 photographs, 32 × 32 colour, 100 classes (the fine labels)",
        100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), ("cifar-100",), cifar_100,
    ),
    "shakespeare": Entry(
        "48,797 windows of 20 characters of Shakespeare and the one that follows, by speaker",
        65, (), (), ("shakespeare",), speakers,
    ),
    "heart-disease": Entry(
        "920 patients of four hospitals, 15 numbers each, 2 classes",
        2, (), (), ("heart-cleveland", "heart-hungarian", "heart-switzerland", "heart-va"), hospitals,
    ),
}  # fmt: skip


def load(name: str, progress: Progress = quiet) -> Dataset:
    """The dataset of that name; a download reports to `progress(file, bytes so far, bytes in all)`."""
    entry = DATASETS[known(name, DATASETS, "dataset")]
    contents = read(official(*entry.files), progress) if entry.files else []  # embedded: no data folder is asked
    x, y, n_train, writers = entry.decode(contents)
    return Dataset(name, x, y, n_train, entry.classes, entry.mean, entry.std, entry.scale, writers)

"""A dataset divided among clients, each with training and test samples of its own."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Ids, Mask, known, part, require, shown, stream
from fedstale.core.abilities import listed, names_of
from fedstale.data.datasets import Dataset
from fedstale.data.partition import NeedsWriters, Partition, check
from fedstale.data.swap import Swap


@part
class Group:
    """Samples of some clients, one client after the other: client i's are rows offsets[i] to offsets[i + 1]."""

    x: npt.NDArray[Any]  # (M, C, H, W) of images
    y: npt.NDArray[Any]  # (M,)
    offsets: Ids


@part
class Federated:
    """The samples of all clients, one client after the other.

    Client i trains on rows train_offsets[i] to train_offsets[i + 1] of `x` and `y`; its test samples
    are the rows of `test_x` and `test_y` that test_offsets names likewise. A client without training
    samples weighs nothing where weights go by samples; one without test samples has no accuracy, and an
    evaluator leaves it out and lets the weights of the others sum to one.

    Where there is a `central_test` set, clients have no test samples of their own; it is a group of one.
    """

    name: str
    x: npt.NDArray[Any]  # (M, C, H, W) of images
    y: npt.NDArray[Any]  # (M,)
    train_offsets: Ids  # (n + 1,)
    test_x: npt.NDArray[Any]  # (M', C, H, W)
    test_y: npt.NDArray[Any]  # (M',)
    test_offsets: Ids  # (n + 1,)
    classes: int
    mean: tuple[float, ...]  # per channel, of pixels scaled to [0, 1]
    std: tuple[float, ...]
    scale: float  # the pixel value that stands for 1
    central_test: Group | None = None
    validation: Group | None = None  # of the n clients
    held_out: Group | None = None  # of clients that never train, which are not among the n
    names: tuple[str, ...] = ()  # of the n clients, where they have names
    class_names: tuple[str, ...] = ()  # of the classes, where they have names
    note: str = ""  # how the samples were prepared, in words

    def __repr__(self) -> str:
        return f"Federated({self.name!r}, n={self.n}, {len(self.y)} training samples)"

    @property
    def n(self) -> int:
        """How many clients."""
        return len(self.train_offsets) - 1

    @property
    def train_sizes(self) -> Ids:
        """(n,) training samples of each client."""
        return np.diff(self.train_offsets)

    @property
    def test_sizes(self) -> Ids:
        """(n,) test samples of each client."""
        return np.diff(self.test_offsets)

    def train(self, client: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Views of one client's training samples and labels."""
        rows = slice(self.train_offsets[client], self.train_offsets[client + 1])
        return self.x[rows], self.y[rows]

    def test(self, client: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Views of one client's test samples and labels."""
        rows = slice(self.test_offsets[client], self.test_offsets[client + 1])
        return self.test_x[rows], self.test_y[rows]


def federate(
    dataset: Dataset,
    partition: Partition,
    n: int,
    *,
    seed: int,
    fraction: float = 1.0,
    test: Literal["per-client", "official"] = "per-client",
    test_share: float = 0.2,
    validation: float = 0.0,
    held_out: float | Sequence[int] = 0.0,
    drop_empty: bool = False,
    resolution: int | None = None,
    swap: Swap | None = None,
) -> Federated:
    """Divide a random `fraction` of the dataset, training and test set pooled, among n clients.

    Of each client's samples a random `test_share` is for testing: as near to it as whole samples allow,
    exact over all clients, and at least one sample for training and one for testing where there are two.
    With `test="official"` the dataset's own test set stays together as one central test set instead, and the
    training set is divided; `fraction` applies to both.

    `validation` is the share of each client's training samples that is kept for validation. `held_out` is
    the share of the clients that never train, drawn at random, or their numbers; the others are then
    numbered anew. With `drop_empty`, clients without samples are left out, with a warning that names them.
    `resolution` makes images smaller, by means over squares of pixels: 14 for 14 × 14 instead of 28 × 28.
    """
    _check_parts(dataset, partition)
    dataset = dataset if resolution is None else dataset.at_resolution(resolution)
    require(0 < fraction <= 1, f"fraction must be above 0 and at most 1, got {fraction}")
    require(0 < test_share < 1, f"test_share must be above 0 and below 1, got {test_share}")
    require(0 <= validation < 1, f"validation must be at least 0 and below 1, got {validation}")
    official = known(test, dict.fromkeys(("per-client", "official")), "test") == "official"
    pool = stream(seed, "data", "pool").permutation(len(dataset.y))[: round(fraction * len(dataset.y))]
    pool, central = _official(dataset, np.sort(pool)) if official else (np.sort(pool), pool[:0])
    clients = _divide(dataset, pool, partition, n, seed, drop_empty)
    single = np.array([len(mine) == 1 and not official for mine in clients])
    _warn(single, "one sample, hence none for testing", () if drop_empty else names_of(partition))
    tests, trains = _cut(clients, 0.0 if official else test_share)
    y = dataset.y
    if swap is not None:
        y = swap.apply(y, trains, stream(seed, "data", "swap", "train"))
        y = swap.apply(y, tests, stream(seed, "data", "swap", "test"))
    away = absent(held_out, len(clients), seed)
    others = [np.concatenate([tests[i], trains[i]]) for i in away]
    tests, trains = ([mine for i, mine in enumerate(of) if i not in away] for of in (tests, trains))
    chosen, trains = _cut(trains, validation)
    more = {"central_test": [central], "validation": chosen, "held_out": others}
    return _assemble(dataset, y, trains, tests, more)


def _check_parts(dataset: object, partition: object) -> None:
    ok = isinstance(dataset, Dataset)
    require(ok, f'dataset must be a Dataset, such as fs.data.load("digits"), got {shown(dataset)}')
    ok = isinstance(partition, Partition) and not isinstance(partition, str | type)
    require(ok, f"partition must be an object such as fs.data.Dirichlet(0.5), got {shown(partition)}")


def _official(dataset: Dataset, pool: Ids) -> tuple[Ids, Ids]:
    """The samples of a pool that are of the official training set, and of the official test set."""
    train, test = np.split(pool, [np.searchsorted(pool, dataset.n_train)])
    some = f" among the {len(pool)} samples that are used" if dataset.n_train < len(dataset.y) else ""
    require(len(test) > 0, f'test = "official" needs a dataset with a test set, {dataset.name} has none{some}')
    return train, test


def _divide(dataset: Dataset, pool: Ids, partition: Partition, n: int, seed: int, drop_empty: bool) -> list[Ids]:
    """The samples of each client, in random order; who got none, or one, is told."""
    check(pool, n)
    keys = dataset.writers if isinstance(partition, NeedsWriters) and partition.needs_writers else dataset.y
    if keys is None:
        raise BadInput(f"this partition needs a dataset with writers, such as mnist-writers, got {dataset.name}")
    lists = partition.split(keys[pool], n, stream(seed, "data", "partition"))
    _check_lists(lists, n, len(pool))
    sizes = np.array([len(mine) for mine in lists])
    _warn(sizes == 0, "no samples" + (" and are left out" if drop_empty else ""), names_of(partition), stacklevel=4)
    ordered = [stream(seed, "data", "order", i).permutation(pool[mine]) for i, mine in enumerate(lists)]
    return [mine for mine in ordered if len(mine)] if drop_empty else ordered


def _cut(clients: Sequence[Ids], share: float) -> tuple[list[Ids], list[Ids]]:
    """The share of each client's samples that is set aside, and the rest."""
    counts = set_aside(np.array([len(mine) for mine in clients], np.int64), share)
    pairs = [np.split(mine, [count]) for mine, count in zip(clients, counts, strict=True)]
    return [first for first, _ in pairs], [rest for _, rest in pairs]


def set_aside(sizes: Ids, share: float) -> Ids:
    """How many samples of each client are set aside: `share` of its own, by largest remainders."""
    if share == 0:
        return np.zeros_like(sizes)
    exact = share * sizes
    counts = np.floor(exact).astype(np.int64)
    left = round(share * sizes.sum()) - counts.sum()
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1  # the total comes out right
    counts = np.maximum(counts, 1)
    return np.where(counts < sizes, counts, np.maximum(sizes - 1, 0))


def absent(held_out: float | Sequence[int], n: int, seed: int) -> list[int]:
    """The clients that never train, ascending: those that are named, or a share drawn at random."""
    if isinstance(held_out, int | float):
        require(0 <= held_out < 1, f"held_out must be at least 0 and below 1, or a list of clients, got {held_out}")
        count = max(1, round(held_out * n)) if held_out else 0
        named: list[int] = stream(seed, "data", "held out").permutation(n)[:count].tolist()
    else:
        named = list(held_out)
    ok = len({*named}) == len(named) and all(0 <= i < n for i in named)
    require(ok, f"held_out must be different clients from 0 to {n - 1}, got {named}")
    require(len(named) < n, f"held_out must leave a client that trains, got {len(named)} of {n}")
    return sorted(named)


def _check_lists(lists: Sequence[Ids], n: int, count: int) -> None:
    """Refuse what a user's own rule gets wrong, before it shows as a wrong result."""
    require(len(lists) == n, f"a partition must return a list for each of {n} clients, got {len(lists)}")
    used = np.concatenate(lists)
    inside = len(used) == 0 or (used.min() >= 0 and used.max() < count)
    require(inside, f"a partition must return indices from 0 to {count - 1}, got others")
    require(len(np.unique(used)) == len(used), "a partition must give a sample to one client, got several")


def _warn(which: Mask, lack: str, names: Sequence[str], stacklevel: int = 3) -> None:
    clients = np.flatnonzero(which).tolist()
    if clients:
        few = listed([names[i] if names else str(i) for i in clients], 5)
        warnings.warn(f"{len(clients)} of {len(which)} clients have {lack}: {few}", stacklevel=stacklevel)


def _assemble(
    dataset: Dataset, y: Ids, trains: Sequence[Ids], tests: Sequence[Ids], more: Mapping[str, Sequence[Ids]]
) -> Federated:
    def group(clients: Sequence[Ids]) -> Group:
        rows = np.concatenate(clients)
        return Group(dataset.x[rows], y[rows], np.cumsum([0, *map(len, clients)]))

    train, test = group(trains), group(tests)
    others = {name: group(clients) for name, clients in more.items() if any(map(len, clients))}
    return Federated(
        dataset.name, train.x, train.y, train.offsets, test.x, test.y, test.offsets,
        dataset.classes, dataset.mean, dataset.std, dataset.scale,
        others.get("central_test"), others.get("validation"), others.get("held_out"),
    )  # fmt: skip

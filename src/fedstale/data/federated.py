"""A dataset divided among clients, each with training and test samples of its own."""

import warnings
from collections.abc import Sequence

import numpy as np

from fedstale.core import BadInput, Ids, Mask, part, require
from fedstale.data.datasets import Dataset
from fedstale.data.formats import Pixels
from fedstale.data.partition import NeedsWriters, Partition, check
from fedstale.data.swap import Swap
from fedstale.rng import stream


@part
class Federated:
    """The samples of all clients, one client after the other.

    Client i trains on rows train_offsets[i] to train_offsets[i + 1] of `x` and `y`; its test samples
    are the rows of `test_x` and `test_y` that test_offsets names likewise. A client without training
    samples weighs nothing where weights go by samples; one without test samples has no accuracy, and an
    evaluator leaves it out and lets the weights of the others sum to one.
    """

    name: str
    x: Pixels  # (M, C, H, W)
    y: Ids  # (M,)
    train_offsets: Ids  # (n + 1,)
    test_x: Pixels  # (M', C, H, W)
    test_y: Ids  # (M',)
    test_offsets: Ids  # (n + 1,)
    classes: int
    mean: tuple[float, ...]  # per channel, of pixels scaled to [0, 1]
    std: tuple[float, ...]
    scale: float  # the pixel value that stands for 1

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

    def train(self, client: int) -> tuple[Pixels, Ids]:
        """Views of one client's training samples and labels."""
        rows = slice(self.train_offsets[client], self.train_offsets[client + 1])
        return self.x[rows], self.y[rows]

    def test(self, client: int) -> tuple[Pixels, Ids]:
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
    test_share: float = 0.2,
    swap: Swap | None = None,
) -> Federated:
    """Divide a random `fraction` of the dataset, training and test set pooled, among n clients.

    Of each client's samples a random `test_share` is for testing: as near to it as whole samples allow,
    exact over all clients, and at least one sample for training and one for testing where there are two.
    """
    require(0 < fraction <= 1, f"fraction must be above 0 and at most 1, got {fraction}")
    require(0 < test_share < 1, f"test_share must be above 0 and below 1, got {test_share}")
    pool = stream(seed, "data", "pool").permutation(len(dataset.y))[: round(fraction * len(dataset.y))]
    clients = _divide(dataset, np.sort(pool), partition, n, seed)
    cuts = held_out(np.array([len(mine) for mine in clients]), test_share)
    tests, trains = zip(*(np.split(mine, [cut]) for mine, cut in zip(clients, cuts, strict=True)), strict=True)
    y = dataset.y
    if swap is not None:
        y = swap.apply(y, trains, stream(seed, "data", "swap", "train"))
        y = swap.apply(y, tests, stream(seed, "data", "swap", "test"))
    return _assemble(dataset, y, trains, tests)


def _divide(dataset: Dataset, pool: Ids, partition: Partition, n: int, seed: int) -> list[Ids]:
    """The samples of each client, in random order; who got none, or one, is told."""
    check(pool, n)
    keys = dataset.writers if isinstance(partition, NeedsWriters) and partition.needs_writers else dataset.y
    if keys is None:
        raise BadInput(f"this partition needs a dataset with writers, such as mnist-writers, got {dataset.name}")
    lists = partition.split(keys[pool], n, stream(seed, "data", "partition"))
    _check_lists(lists, n, len(pool))
    sizes = np.array([len(mine) for mine in lists])
    _warn(sizes == 0, "no samples")
    _warn(sizes == 1, "one sample, hence none for testing")
    return [stream(seed, "data", "order", i).permutation(pool[mine]) for i, mine in enumerate(lists)]


def held_out(sizes: Ids, share: float) -> Ids:
    """How many samples each client keeps for testing: `share` of its own, by largest remainders."""
    exact = share * sizes
    counts = np.floor(exact).astype(np.int64)
    left = round(share * sizes.sum()) - counts.sum()
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1  # the total comes out right
    counts = np.maximum(counts, 1)
    return np.where(counts < sizes, counts, np.maximum(sizes - 1, 0))


def _check_lists(lists: Sequence[Ids], n: int, count: int) -> None:
    """Refuse what a user's own rule gets wrong, before it shows as a wrong result."""
    require(len(lists) == n, f"a partition must return a list for each of {n} clients, got {len(lists)}")
    used = np.concatenate(lists)
    inside = len(used) == 0 or (used.min() >= 0 and used.max() < count)
    require(inside, f"a partition must return indices from 0 to {count - 1}, got others")
    require(len(np.unique(used)) == len(used), "a partition must give a sample to one client, got several")


def _warn(which: Mask, lack: str) -> None:
    clients = np.flatnonzero(which).tolist()
    if clients:
        few = ", ".join(map(str, clients[:5])) + (", …" if len(clients) > 5 else "")
        warnings.warn(f"{len(clients)} of {len(which)} clients have {lack}: {few}", stacklevel=4)


def _assemble(dataset: Dataset, y: Ids, trains: Sequence[Ids], tests: Sequence[Ids]) -> Federated:
    train, test = np.concatenate(trains), np.concatenate(tests)
    offsets, test_offsets = (np.cumsum([0, *map(len, lists)]) for lists in (trains, tests))
    return Federated(
        dataset.name, dataset.x[train], y[train], offsets, dataset.x[test], y[test], test_offsets,
        dataset.classes, dataset.mean, dataset.std, dataset.scale,
    )  # fmt: skip

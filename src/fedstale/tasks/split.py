"""The samples of all clients in memory, and how much each client counts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedstale.core import Floats, Ids, require

Data = Tensor | npt.NDArray[Any]
Weighting = Callable[[Ids], npt.ArrayLike]  # training samples of each client (n,) -> (n,)


class Split(NamedTuple):
    """Training or test samples, one client after the other: i's are rows offsets[i] to offsets[i + 1]."""

    x: Tensor  # (M, …)
    y: Tensor  # (M, …)
    offsets: Ids  # (n + 1,)

    @classmethod
    def of(cls, x: Data, y: Data, offsets: npt.ArrayLike) -> "Split":
        """From tensors or arrays, checked; without a copy where the types are already right."""
        split = cls(_inputs(x), _targets(y), np.asarray(offsets, np.int64))
        m, cuts = len(split.x), split.offsets
        require(len(split.y) == m, f"x and y must have a row for each sample, got {m} and {len(split.y)}")
        ok = cuts.ndim == 1 and len(cuts) >= 2 and cuts[0] == 0 and cuts[-1] == m and bool((split.sizes >= 0).all())
        require(ok, f"offsets must rise from 0 to {m}, the number of samples, got {cuts}")
        return split

    @classmethod
    def joined(cls, clients: Sequence[tuple[Data, Data]]) -> "Split":
        """From one (x, y) pair per client."""
        require(len(clients) > 0, "a task needs at least one client, got none")
        odd = next((c for c in clients if not (isinstance(c, tuple | list) and len(c) == 2)), None)
        require(odd is None, f"samples must be one (x, y) pair per client, got {type(odd).__name__} in its place")
        xs, ys = [_inputs(x) for x, _ in clients], [_targets(y) for _, y in clients]
        for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
            require(len(x) == len(y), f"client {i} must have as many targets as inputs, {len(x)}, got {len(y)}")
        return cls.of(torch.cat(xs), torch.cat(ys), np.cumsum([0, *map(len, xs)]))

    @property
    def sizes(self) -> Ids:
        """(n,) samples of each client."""
        return np.diff(self.offsets)

    def to(self, device: torch.device) -> "Split":
        """The samples on a device."""
        return Split(self.x.to(device), self.y.to(device), self.offsets)

    def means(self, values: Floats) -> Floats:
        """(M,) values to their mean per client (n,): nan without samples."""
        sizes = self.sizes
        sums = np.bincount(np.repeat(np.arange(len(sizes)), sizes), values, len(sizes))
        means: Floats = np.divide(sums, sizes, out=np.full(len(sizes), np.nan), where=sizes > 0)
        return means


def even(sizes: Ids) -> Floats:
    """a_i = 1 / n: every client counts the same."""
    return np.ones(len(sizes))


def by_samples(sizes: Ids) -> Ids:
    """a_i = n_i / Σ n_j: every training sample counts the same."""
    return sizes


WEIGHTS: Mapping[str, Weighting] = {"per-client": even, "per-sample": by_samples}


def _inputs(data: Data) -> Tensor:
    """Without a copy, except that float64 becomes float32."""
    if not isinstance(data, Tensor):
        array = np.asarray(data)
        data = torch.from_numpy(array if array.flags.writeable else array.copy())  # torch wants to be able to write
    return data.float() if data.dtype == torch.float64 else data


def _targets(data: Data) -> Tensor:
    """Like `_inputs`, with whole numbers as int64, which torch's losses need."""
    data = _inputs(data)
    return data if data.is_floating_point() else data.long()

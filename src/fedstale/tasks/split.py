"""The samples of all clients, in memory or fetched one by one: to train on, and to score; how much each counts."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from fedstale.core import Array, BadInput, Floats, Ids, known, normalised, require

Data = Tensor | npt.NDArray[Any]
Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]  # with one first dimension: (b, …)
InputData = Data | tuple[Data, ...] | Mapping[str, Data]
Weighting = Callable[[Ids], npt.ArrayLike]  # training samples of each client (n,) -> (n,)


@runtime_checkable
class MapStyle(Protocol):
    """A torch Dataset, or anything else with a length that gives sample number i, a pair (x, y)."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class Fetches(Protocol):
    """A dataset that gives several samples at once, as torch's Subset does."""

    def __getitems__(self, indices: list[int], /) -> list[Any]: ...


class Split(NamedTuple):
    """Training or test samples, one client after the other: i's are rows offsets[i] to offsets[i + 1]."""

    x: Any  # Inputs: (M, …), or a tuple or dict of such tensors
    y: Tensor  # (M, …)
    offsets: Ids  # (n + 1,)

    @classmethod
    def of(cls, x: InputData, y: Data, offsets: npt.ArrayLike) -> "Split":
        """From tensors or arrays, checked; without a copy where the types are already right."""
        split = cls(mapped(_inputs, x), _targets(y), np.asarray(offsets, np.int64))
        m, cuts = rows_of(split.x), split.offsets
        require(len(split.y) == m, f"x and y must have a row for each sample, got {m} and {len(split.y)}")
        ok = cuts.ndim == 1 and len(cuts) >= 2 and cuts[0] == 0 and cuts[-1] == m and bool((split.sizes >= 0).all())
        require(ok, f"offsets must rise from 0 to {m}, the number of samples, got {cuts}")
        ok = all(bool(v.isfinite().all()) for v in (*leaves(split.x), split.y) if v.is_floating_point())
        require(ok, "samples must be finite numbers, got nan or inf: fill in what is missing, or leave it out")
        return split

    @classmethod
    def joined(cls, clients: Sequence[tuple[InputData, Data]]) -> "Split":
        """From one (x, y) pair per client."""
        require(len(clients) > 0, "a task needs at least one client, got none")
        odd = next((c for c in clients if not (isinstance(c, tuple | list) and len(c) == 2)), None)
        require(
            odd is None,
            f"samples must be one (x, y) pair per client, or one Dataset with a length, got {type(odd).__name__}"
            + (": give its .dataset" if isinstance(odd, DataLoader) else ""),
        )
        xs, ys = [mapped(_inputs, x) for x, _ in clients], [_targets(y) for _, y in clients]
        sizes = [rows_of(x) for x in xs]
        for i, (m, y) in enumerate(zip(sizes, ys, strict=True)):
            require(m == len(y), f"client {i} must have as many targets as inputs, {m}, got {len(y)}")
        return cls.of(_joined(xs), torch.cat(ys), np.cumsum([0, *sizes]))

    @property
    def sizes(self) -> Ids:
        """(n,) samples of each client."""
        return np.diff(self.offsets)

    def take(self, rows: Tensor) -> tuple[Any, Tensor]:
        """Inputs and targets of some rows (b,)."""
        return mapped(lambda v: v.index_select(0, rows), self.x), self.y.index_select(0, rows)

    def span(self, start: int, stop: int) -> tuple[Any, Tensor]:
        """Inputs and targets of neighbouring rows, without a copy."""
        return mapped(lambda v: v[start:stop], self.x), self.y[start:stop]

    def to(self, device: torch.device) -> "Split":
        """The samples on a device."""
        return Split(mapped(lambda v: v.to(device), self.x), self.y.to(device), self.offsets)

    def some(self, clients: Ids) -> "Split":
        """A copy of the samples of some clients, in this order."""
        rows = np.concatenate([np.arange(*self.offsets[i : i + 2]) for i in clients])
        return Split(*self.take(torch.from_numpy(rows).to(self.y.device)), np.cumsum([0, *self.sizes[clients]]))

    def labels(self, names: Sequence[str] = (), most: int = 3) -> list[str]:
        """Of each client its most frequent labels, `3 (62 %), 7 (38 %)`, by their names where there are any."""
        found = []
        for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            values, counts = np.unique(self.y[start:stop].cpu().numpy(), return_counts=True)
            order = np.argsort(-counts, kind="stable")
            told = [names[v] for v in values] if names else values
            shares = [f"{told[k]} ({100 * counts[k] / (stop - start):.0f} %)" for k in order[:most]]
            found.append(", ".join(shares) + ", …" * (len(order) > most))
        return found

    def means(self, values: Floats) -> Floats:
        """(M,) values to their mean per client (n,): nan without samples."""
        return means(values, self.offsets)


class Lazy(NamedTuple):
    """Training or test samples that are fetched when they are needed, from one dataset per client."""

    datasets: tuple[MapStyle, ...]  # n
    offsets: Ids  # (n + 1,)
    device: torch.device

    @property
    def sizes(self) -> Ids:
        """(n,) samples of each client."""
        return np.diff(self.offsets)

    @property
    def x(self) -> Any:
        raise BadInput("this needs samples in memory: give (x, y) pairs of tensors, got datasets")

    @property
    def y(self) -> Any:
        return self.x

    def take(self, rows: Tensor) -> tuple[Any, Tensor]:
        """Inputs and targets of some rows (b,), collated as torch's DataLoader does."""
        clients = (np.searchsorted(self.offsets, rows.tolist(), "right") - 1).tolist()
        samples: list[Any] = []
        for client, group in groupby(zip(clients, rows.tolist(), strict=True), lambda pair: pair[0]):
            indices, dataset = [row - int(self.offsets[client]) for _, row in group], self.datasets[client]
            samples += (
                dataset.__getitems__(indices) if isinstance(dataset, Fetches) else map(dataset.__getitem__, indices)
            )
        odd = next((s for s in samples if not (isinstance(s, tuple | list) and len(s) == 2)), None)
        require(odd is None, f"a dataset must give pairs (x, y), got {type(odd).__name__}")
        x, y = default_collate(samples)
        x = mapped(_inputs, tuple(x) if isinstance(x, list) else x)
        return mapped(lambda v: v.to(self.device), x), _targets(y).to(self.device)

    def span(self, start: int, stop: int) -> tuple[Any, Tensor]:
        """Inputs and targets of neighbouring rows."""
        return self.take(torch.arange(start, stop))

    def some(self, clients: Ids) -> "Lazy":
        """The datasets of some clients, in this order."""
        chosen = tuple(self.datasets[i] for i in clients.tolist())
        return Lazy(chosen, np.cumsum([0, *self.sizes[clients]]), self.device)

    def to(self, device: torch.device) -> "Lazy":
        """The same datasets, whose samples are put on a device."""
        return self._replace(device=device)


def is_dataset(samples: object) -> bool:
    """Whether this is a dataset of one client, not its samples."""
    held = isinstance(samples, tuple | list | Mapping | Tensor | np.ndarray | str)
    return isinstance(samples, MapStyle) and not held


def mapped(f: Callable[[Any], Any], x: Any) -> Any:
    """f of an array, or of each array in a tuple or dict."""
    if isinstance(x, Mapping):
        return {name: f(v) for name, v in x.items()}
    inner = isinstance(x, tuple) and all(isinstance(v, Tensor | np.ndarray) for v in x)
    return tuple(map(f, x)) if inner else f(x)


def leaves(x: Any) -> list[Tensor]:
    """The tensors of some inputs."""
    return [*(x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple) else [x])]


def rows_of(x: Any) -> int:
    """The first dimension of some inputs, which all their tensors share."""
    sizes = {len(v) for v in leaves(x)}
    require(len(sizes) == 1, f"all inputs must have as many rows, got {sorted(sizes) or 'no inputs'}")
    return sizes.pop()


def means(values: Floats, offsets: Ids) -> Floats:
    """(M,) values of the rows to their mean per client (n,): nan without samples."""
    sizes = np.diff(offsets)
    sums = np.bincount(np.repeat(np.arange(len(sizes)), sizes), values, len(sizes))
    found: Floats = np.divide(sums, sizes, out=np.full(len(sizes), np.nan), where=sizes > 0)
    return found


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
        require(array.dtype.kind in "biuf", f"samples must be numbers, got {array.dtype.type.__name__.strip('_')}")
        data = torch.from_numpy(array if array.flags.writeable else array.copy())  # torch wants to be able to write
    return data.float() if data.dtype == torch.float64 else data


def _joined(xs: Sequence[Any]) -> Any:
    """The inputs of all clients, one after the other; refuses clients with other inputs than the first."""
    names = [[*x] if isinstance(x, Mapping) else len(x) if isinstance(x, tuple) else None for x in xs]
    odd = next((i for i, name in enumerate(names) if name != names[0]), None)
    require(odd is None, f"all clients must have the same inputs, got others for client {odd}")
    joined = iter([torch.cat(parts) for parts in zip(*map(leaves, xs), strict=True)])
    return mapped(lambda _: next(joined), xs[0])


def _targets(data: Data) -> Tensor:
    """Like `_inputs`, with whole numbers as int64, which torch's losses need."""
    if not isinstance(data, Tensor) and (words := np.asarray(data)).dtype.kind in "USO" and words.size:
        way = "number them, as y = [classes.index(label) for label in labels] does"
        raise BadInput(f"targets must be class numbers from 0, got texts such as {str(words.flat[0])!r}: {way}")
    data = _inputs(data)
    return data if data.is_floating_point() else data.long()


Samples = Split | Lazy | Sequence[tuple[InputData, Data]] | Sequence[MapStyle]


class Scored(NamedTuple):
    """Samples that an evaluation scores, client by client; a central test set is that of one client."""

    prefix: str  # of the names of its scores
    split: Split | Lazy
    weights: Array | Floats  # how much each of its clients counts
    of_clients: bool = True  # whether its clients are those that train


def split_of(samples: Samples, device: torch.device, what: str = "train") -> Split | Lazy:
    """The samples of all clients, on a device; `what` they are is for sentences."""
    if isinstance(samples, Split):
        return Split.of(*samples).to(device)
    if isinstance(samples, Lazy):
        return samples.to(device)
    if len(samples) and all(map(is_dataset, samples)):
        return Lazy(tuple(samples), np.cumsum([0, *map(len, samples)]), device)
    try:
        return Split.joined(samples).to(device)  # type: ignore[arg-type]
    except BadInput as error:
        raise BadInput(f"{what}: {error}") from None


@runtime_checkable
class OfClient(Protocol):
    """A dataset that knows the name of its client, as those of `from_hf` do; empty if it has none."""

    @property
    def client_name(self) -> str: ...


def client_names(samples: Samples) -> tuple[str, ...]:
    """The names that the datasets of the clients know; none if one has none."""
    if isinstance(samples, Split | Lazy):
        return ()
    names = tuple(x.client_name if isinstance(x, OfClient) else "" for x in samples)
    return names if all(names) else ()


def of_clients(what: str, samples: Samples | None, n: int, device: torch.device) -> Split | Lazy:
    """Samples of the n clients that train; no rows for each of them if none are given."""
    if samples is None:
        return Split(torch.empty(0), torch.empty(0), np.zeros(n + 1, np.int64))
    split = split_of(samples, device, what)
    require(len(split.sizes) == n, f"{what} must have {n} clients, got {len(split.sizes)}")
    return split


def scored_samples(
    test: Split | Lazy,
    central_test: tuple[InputData, Data] | MapStyle | None,
    validation: Samples | None,
    held_out: Samples | None,
    weights: Array,
    rule: npt.ArrayLike | Weighting,
    device: torch.device,
) -> list[Scored]:
    """What an evaluation scores: test samples of the clients, or one set for all; validation samples; strangers.

    Clients that never train count alike, unless there is a rule for the weights.
    """
    found = [Scored("", test, weights)]
    if central_test is not None:
        ok = is_dataset(central_test) or (isinstance(central_test, tuple | list) and len(central_test) == 2)
        require(ok, f"central_test must be one pair (x, y) or one Dataset, got {type(central_test).__name__}")
        found = [Scored("", split_of([central_test], device, "central_test"), np.ones(1), False)]
    if validation is not None:
        found.append(Scored("validation_", of_clients("validation", validation, len(weights), device), weights))
    if held_out is not None:
        others = split_of(held_out, device, "held_out")
        a = normalised((rule if callable(rule) else even)(others.sizes), len(others.sizes))
        found.append(Scored("held_out_", others, a, False))
    return found


def weighting(weights: npt.ArrayLike | Weighting | str) -> npt.ArrayLike | Weighting:
    """Weights, or the rule with this name."""
    return WEIGHTS[known(weights, WEIGHTS, "weights")] if isinstance(weights, str) else weights

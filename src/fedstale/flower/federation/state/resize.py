"""Change the number of clients in a state when clients join and leave.

A state is a tree whose arrays are known by their path. A memory in it is not an array: its rows may be coded, in a
file, or not there yet. So its small arrays are handled like all others, and its rows one by one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Ids
from fedstale.lab.runs.codec import children, pack, rebuilt, unpack
from fedstale.memory import Memory

T = TypeVar("T")
Arrays = dict[str, np.ndarray[Any, Any]]
Axes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class WithoutRows:
    """A memory that saves its small arrays only; restored, it is the memory itself with its own rows."""

    memory: Memory

    def saved(self) -> tuple[npt.NDArray[Any], ...]:
        m = self.memory
        return m.scales, m.written, m.weights, m.total  # (n,), (n,), (n,), (d,)

    def restored(self, saved: tuple[npt.NDArray[Any], ...]) -> Memory:
        m = self.memory
        m.scales, m.written, m.weights, m.total = saved
        return m


def without_rows(tree: Any) -> Any:
    """The tree with every memory saved without its rows."""
    if isinstance(tree, Memory):
        return WithoutRows(tree)
    parts = children(tree)
    return tree if parts is None else rebuilt(tree, {key: without_rows(inner) for key, inner in parts})


def memories(tree: Any, path: str = "") -> Iterator[tuple[str, Memory]]:
    """The memories in a tree, each with its path."""
    if isinstance(tree, Memory):
        yield path, tree
    else:
        for key, inner in children(tree) or ():
            yield from memories(inner, f"{path}/{key}")


def put_rows(memory: Memory, rows: Mapping[int, npt.NDArray[Any]]) -> None:
    """Write coded rows, by position, into a memory."""
    if rows:
        clients = np.array(sorted(rows), np.int64)
        codes, places = memory.kept.take(clients)
        for place, k in zip(places.tolist(), clients.tolist(), strict=True):
            codes[place] = rows[k]
        memory.kept.put(clients, codes)


def arrays_of(tree: Any) -> Arrays:
    """Path → array, for all arrays but the rows of memories."""
    arrays: Arrays = {}
    pack(without_rows(tree), "", arrays)
    return arrays


def with_arrays(tree: T, arrays: Mapping[str, np.ndarray[Any, Any]], like: T) -> T:
    """The tree with these arrays instead of its own, and with the memories of `like` and their rows."""
    new: T = unpack(pack(without_rows(tree), "", {}), without_rows(like), "", arrays.__getitem__)
    return new


def client_axes(make: Callable[[int], Any], n: int) -> Axes:
    """Path → axes that count clients: those that are longer in a state with one more client.

    A part whose settings are one number per client cannot be made for more; it has no rows to keep.
    """
    try:
        here, more = arrays_of(make(n)), arrays_of(make(n + 1))
    except BadInput:
        return {}
    pairs = {path: zip(a.shape, more[path].shape, strict=True) for path, a in here.items()}
    return {path: tuple(k for k, (x, y) in enumerate(shape) if x != y) for path, shape in pairs.items()}


def resize(tree: T, make: Callable[[int], T], old: Ids, new: Ids) -> T:
    """The state of clients `old` as a state of clients `new`; `make(n)` is a fresh state of n clients.

    Clients that stay keep their rows, new clients have fresh rows, and rows of clients that left are gone. Sums
    over clients stay as they are: a memory computes its sum again, because its next weights are others.
    """
    _, of_old, of_new = np.intersect1d(old, new, return_indices=True)
    like, axes, arrays = make(len(new)), client_axes(make, len(new)), arrays_of(tree)
    fresh = arrays_of(like)
    for path in [path for path in arrays if axes.get(path)]:
        arrays[path] = _taken(arrays[path], fresh[path], axes[path], of_old, of_new)
    for (path, was), (_, now) in zip(memories(tree), memories(like), strict=True):
        across = bool(axes.get(f"{path}/3"))  # its columns are clients, too
        stay = [(a, b) for a, b in zip(of_old.tolist(), of_new.tolist(), strict=True) if was.written[a]]
        blank, rows = np.zeros_like(now.kept.read(0)), {b: was.kept.read(a).copy() for a, b in stay}
        if across:
            rows = {b: _taken(row, blank, (0,), of_old, of_new) for b, row in rows.items()}
        put_rows(now, rows)
    return with_arrays(tree, arrays, like)


def _taken(was: Any, fresh: Any, axes: tuple[int, ...], of_old: Ids, of_new: Ids) -> Any:
    """The array `was` for the new clients: `fresh` where a client is new."""
    shape = tuple(fresh.shape[k] if k in axes else size for k, size in enumerate(was.shape))
    now = np.broadcast_to(fresh, shape).copy()
    where = [(of_new, of_old) if k in axes else (np.arange(size),) * 2 for k, size in enumerate(shape)]
    now[np.ix_(*(w[0] for w in where))] = was[np.ix_(*(w[1] for w in where))]
    return now

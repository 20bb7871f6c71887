"""Change the number of clients in a state when clients join and leave.

A state is a tree whose arrays are known by their path. A memory in it is not an array: its rows may be coded, in a
file, or not there yet. So its small arrays are handled like all others, and its rows one by one.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Ids
from fedstale.memory import Memory
from fedstale.runs.codec import pack, unpack

T = TypeVar("T")
Arrays = dict[str, np.ndarray[Any, Any]]
Axes = Mapping[str, tuple[int, ...]]


class MemoryArrays(NamedTuple):
    """A memory without its rows."""

    scales: npt.NDArray[np.float32]  # (n,)
    written: Ids  # (n,)
    weights: npt.NDArray[np.float32]  # (n,)
    total: npt.NDArray[np.float64]  # (d,)


def without_rows(tree: Any) -> Any:
    """The tree with the small arrays of every memory in its place."""
    if isinstance(tree, Memory):
        return MemoryArrays(tree.scales, tree.written, tree.weights, tree.total)
    return _mapped(tree, lambda key, inner: without_rows(inner))


def with_memories(tree: Any, like: Any) -> Any:
    """The inverse of `without_rows`: the memories of `like`, rows included, take over the small arrays."""
    if isinstance(like, Memory):
        for name, value in tree._asdict().items():
            setattr(like, name, value)
        return like
    inner = dict(_children(like))
    return _mapped(tree, lambda key, part: with_memories(part, inner[key]))


def memories(tree: Any, path: str = "") -> Iterator[tuple[str, Memory]]:
    """The memories in a tree, each with its path."""
    if isinstance(tree, Memory):
        yield path, tree
    else:
        for key, inner in _children(tree):
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


def with_arrays(tree: T, arrays: Mapping[str, np.ndarray[Any, Any]]) -> T:
    """The tree, as `without_rows` returns it, with these arrays instead of its own."""
    new: T = unpack(pack(tree, "", {}), tree, "", arrays.__getitem__)
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
    done: T = with_memories(with_arrays(without_rows(tree), arrays), like)
    return done


def _taken(was: Any, fresh: Any, axes: tuple[int, ...], of_old: Ids, of_new: Ids) -> Any:
    """The array `was` for the new clients: `fresh` where a client is new."""
    shape = tuple(fresh.shape[k] if k in axes else size for k, size in enumerate(was.shape))
    now = np.broadcast_to(fresh, shape).copy()
    where = [(of_new, of_old) if k in axes else (np.arange(size),) * 2 for k, size in enumerate(shape)]
    now[np.ix_(*(w[0] for w in where))] = was[np.ix_(*(w[1] for w in where))]
    return now


def _children(tree: Any) -> list[tuple[Any, Any]]:
    if isinstance(tree, dict):
        return list(tree.items())
    return list(enumerate(tree)) if isinstance(tree, tuple | list) else []


def _mapped(tree: Any, change: Callable[[Any, Any], Any]) -> Any:
    """The tree with its direct children changed; a leaf stays as it is."""
    if isinstance(tree, dict):
        return {key: change(key, inner) for key, inner in tree.items()}
    if not isinstance(tree, tuple | list):
        return tree
    parts = [change(key, inner) for key, inner in enumerate(tree)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)

"""A table of who was there, rounds × clients, as it is replayed."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from fedstale.core import Array, Mask, require
from fedstale.participation.groups import Kind


@runtime_checkable
class Recorded(Protocol):
    """A participation that replays a table, (rounds, n)."""

    def recording(self, n: int | None = None) -> Mask: ...


def first_available(table: Mask, clients: int | None) -> Mask:
    """All devices, or the first `clients` that are ever available."""
    if clients is None:
        return table
    ever = np.flatnonzero(table.any(axis=0))
    ok = 1 <= clients <= len(ever)
    require(ok, f"clients must be in 1 … {len(ever)}, the devices that are ever available, got {clients}")
    return table[:, ever[:clients]]


def of_width(table: Mask, n: int | None) -> Mask:
    """The table, if it has n clients."""
    got = table.shape[1]
    if n is None:
        return table
    require(got >= n, f"{n} clients need {n} recorded devices, got {got}")
    require(got == n, f"{n} clients but {got} recorded devices: set clients = {n} to take the first ever available")
    return table


def shares(table: Mask) -> Array:
    """(n,) the share of the rounds that each client was there."""
    return np.asarray(table.mean(axis=0), np.float32)


def kinds(table: Mask) -> Iterator[Kind]:
    """Each round is a kind of its own."""
    for row in table:
        yield Kind(1 / len(table), np.array([0.0, 1.0]), row.astype(np.int64))


def replay(table: Mask) -> Iterator[Mask]:
    """The rounds in order; after the last the first follows again."""
    while True:
        for row in table:
            yield row.copy()

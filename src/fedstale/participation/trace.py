"""Replay of who was there, from a table that was measured or made elsewhere."""

import dataclasses
import difflib
import os
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, BadInput, Mask, Participation, keep, part, require
from fedstale.core.abilities import NamesClients, listed
from fedstale.participation.files import read_names, read_table
from fedstale.participation.groups import Kind


@runtime_checkable
class Recorded(Protocol):
    """A participation that replays a table, (rounds, n)."""

    def recording(self, n: int | None = None) -> Mask: ...


@runtime_checkable
class OrdersClients(NamesClients, Protocol):
    """A recorded participation that can be put into another order of clients; those it does not name never come."""

    def ordered(self, names: Sequence[str]) -> Participation: ...


@runtime_checkable
class HasBase(Protocol):
    """A participation that chooses among the clients of another one."""

    @property
    def base(self) -> Participation: ...


def shares(part: Recorded, n: int) -> Array:
    """The `probs` of a recording, (n,): the share of the rounds that each client was there."""
    return np.asarray(part.recording(n).mean(axis=0), np.float32)


def replay(part: Recorded, n: int, rng: np.random.Generator) -> Iterator[Mask]:
    """The `rows` of a recording: its rounds in order; after the last the first follows again."""
    table = part.recording(n)
    return (row.copy() for _ in count() for row in table)


def columns(table: Mask, names: Sequence[str], wanted: Sequence[str]) -> Mask:
    """(rounds, wanted) the columns of these clients; one that has none never comes."""
    place = {name: k for k, name in enumerate(names)}
    return np.pad(table, ((0, 0), (0, 1)))[:, [place.get(name, -1) for name in wanted]]


def matched(process: Participation, names: Sequence[str]) -> Participation:
    """The participation with its clients in the order of the task's, matched by name where both have names."""
    if not names:
        return process
    if dataclasses.is_dataclass(process) and isinstance(process, HasBase):
        found: Any = dataclasses.replace(process, base=matched(process.base, names))
        return process if found.base is process.base else found
    if not isinstance(process, OrdersClients) or process.names in ((), (*names,)):
        return process
    if len(process.names) != len(names) and not {*names} & {*process.names}:
        return process  # its header names rounds, or anything else
    missing, others = [x for x in names if x not in process.names], [x for x in process.names if x not in names]
    fold, other = {x.casefold() for x in process.names}, [x.casefold() for x in others]
    alike = any(x in fold or difflib.get_close_matches(x, other, cutoff=0.6) for x in map(str.casefold, missing))
    if missing and (alike or 2 * len(missing) >= len(names)):
        what = f"{len(missing)} of {len(names)} clients of the data are not in the recorded participation"
        there = f"it has {listed(others)} instead" if others else f"it has {listed(process.names)}"
        raise BadInput(f"{what}: {listed(missing)}; {there}; leave them out of the data, or name them alike")
    if missing:
        told = f"clients of the data that were never recorded never come: {listed(missing)}"
        warnings.warn(f"{told}; name them alike if one is {listed(others)}" if others else told, stacklevel=3)
    if others:
        warnings.warn(f"recorded clients without data are left out: {listed(others)}", stacklevel=3)
    return process.ordered(names)


@part
class Trace:
    """The rows of a 0/1 table, one per round; past its end it starts again.

    `matrix` is a 2-D array or the path of a .csv (a header line, with it an index column as pandas writes one,
    and .gz, .bz2 or .xz are fine), .npy or .npz file with one. Rounds × clients or clients × rounds: the side
    whose length is n is the clients (both are: rounds × clients, of a file with a warning), unless
    `clients_first` says. `probs` are each client's share of the rounds of the whole trace. Nothing is drawn:
    every seed sees the same rows. The header of a .csv file names the clients, which are then matched by name
    with those of the data; where its first column is a date, the others are counts, above 0 where the client
    came.
    """

    matrix: npt.ArrayLike | os.PathLike[str] | str
    clients_first: bool | None = None

    def __post_init__(self) -> None:
        given = self.matrix
        if isinstance(given, str | os.PathLike):
            if not self.clients_first:
                keep(self, "names", read_names(Path(given)))
            given = read_table(Path(given))
            keep(self, "from_file", True)
        keep(self, "matrix", _table(given))

    probs, rows = shares, replay

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The clients of the header of a file; of a table none."""
        return ()

    @cached_property
    def from_file(self) -> bool:
        """Whether somebody else may have chosen which side is which."""
        return False

    def ordered(self, names: Sequence[str]) -> "Trace":
        """The trace of these clients in this order."""
        made = Trace(columns(np.asarray(self.matrix), self.names, names), clients_first=False)
        keep(made, "names", tuple(names))
        return made

    def recording(self, n: int | None = None) -> Mask:
        """The table as rounds × clients; without n the second side is the clients, or as the setting says."""
        table: Mask = np.asarray(self.matrix)
        clients_first = n not in (None, table.shape[1]) if self.clients_first is None else self.clients_first
        turned = table.T if clients_first else table
        known = "" if self.clients_first is None else f" with clients_first={self.clients_first}"
        sides = f"{table.shape[0]} × {table.shape[1]}{known}"
        require(n in (None, turned.shape[1]), f"the trace is {sides}, which has no side of {n} clients")
        rounds, clients = turned.shape
        unclear = self.from_file and self.clients_first is None and not self.names
        if unclear and (rounds < clients if n is None else rounds == clients):
            told = f"the trace is read as {rounds} rounds of {clients} clients; if its rows are clients, set"
            warnings.warn(f"{told} clients_first = true (--clients-first), else false", stacklevel=2)
        return turned


def _table(given: npt.ArrayLike) -> Mask:
    """A fresh bool table, if that is what it is."""
    try:
        table = np.asarray(given)
    except ValueError as error:  # numpy's word for rows that differ in length
        raise BadInput(f"a trace must be a 2-D table of 0 and 1, got no table: {error}") from error
    require(table.ndim == 2, f"a trace must be a 2-D table of 0 and 1, got shape {table.shape}")
    require(table.size > 0, f"a trace needs at least one round and one client, got shape {table.shape}")
    require(table.dtype.kind in "biuf", f"a trace must hold 0 and 1, got entries of type {table.dtype}")
    bad = np.argwhere((table != 0) & (table != 1))
    if len(bad):
        r, c = bad[0].tolist()
        raise BadInput(f"a trace must hold 0 and 1, got {table[r, c]} in row {r}, column {c} (counted from 0)")
    return table.astype(np.bool_)


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


def recorded_kinds(table: Mask) -> Iterator[Kind]:
    """Each round is a kind of its own."""
    for row in table:
        yield Kind(1 / len(table), np.array([0.0, 1.0]), row.astype(np.int64))

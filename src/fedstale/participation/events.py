"""Recorded on/off events and grids, such as those of FedScale and FLASH, read as data: nothing is ever unpickled.

Lai et al., FedScale, ICML 2022; Yang et al., Characterizing Impacts of Heterogeneity in Federated Learning
upon Large-Scale Smartphone Data (FLASH), WWW 2021.
"""

import math
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Floats, Ids, Mask, NotNegative, Positive, keep, part, require, shown
from fedstale.participation.files import EVENT, read_arrays, read_events, reading
from fedstale.participation.trace import first_available, of_width, replay, shares


class Switches(NamedTuple):
    """A recording in seconds: which client was switched on or off, and when."""

    length: float  # seconds of the recording
    seconds: Floats  # (k,) ascending, from its beginning
    clients: Ids  # (k,)
    on: Mask  # (k,)


def _recording(part: "Events | Grid", n: int | None = None) -> Mask:
    """(rounds, n) who is available when a round starts; all devices if n is left out."""
    return of_width(part._table, n)


@part
class Events:
    """A device is available in a round if its last event at or before the round's start is an `on` state.

    `events` are (device, variant, t_s, state), or the path of a .csv file with these columns (variant may
    be missing) or of a .json file with a list of such records, or {device: {"active": [seconds],
    "inactive": [seconds]}}; also as .xz or .gz. A file with several variants needs `variant`.
    Round k starts at start + (k-1) · round_seconds. Events before `start` are dropped (FLASH: 300, until
    then everybody is on by its publisher's choice), and a device is off before its first. The recording
    ends with the last event; then round 1 follows again. Clients are all devices in the order of the
    file, or the first `clients` that are ever available. The marginals are shares of the rounds.
    """

    events: Sequence[Sequence[str | float]] | npt.NDArray[Any] | os.PathLike[str] | str
    variant: str | None = None
    round_seconds: Positive = 600.0
    start: NotNegative = 0.0
    on: Sequence[str] = ("AVL_TRAIN",)
    clients: int | None = None

    def __post_init__(self) -> None:
        path = self.events if isinstance(self.events, str | os.PathLike) else None
        rows = self.events if path is None else read_events(Path(path))
        events = _of_variant(_checked(rows, str(path or "events")), self.variant, str(path or "events"))
        keep(self, "events", events)
        keep(self, "on", tuple(self.on))
        states = sorted(set(events[:, 3].tolist()))
        require(bool({*states} & {*self.on}), f"on must name a state of the events, {states}, got {[*self.on]}")
        first_available(self._table, self.clients)

    probs, rows, recording = shares, replay, _recording

    @cached_property
    def _table(self) -> Mask:
        return first_available(self._everybody, self.clients)

    @cached_property
    def _everybody(self) -> Mask:
        """(rounds, devices) of all devices, in the order of the file."""
        devices, _, seconds, states = np.asarray(self.events).T
        time, on = seconds.astype(np.float64), np.isin(states, self.on)
        rounds = math.ceil((time.max() - self.start) / self.round_seconds)
        require(rounds >= 1, f"start must be before the last event, at {time.max():g} seconds, got {self.start:g}")
        starts = self.start + self.round_seconds * np.arange(rounds)
        columns = []
        for device in dict.fromkeys(devices.tolist()):
            mine = np.flatnonzero((devices == device) & (time >= self.start))
            mine = mine[np.argsort(time[mine], kind="stable")]  # of two at once, the later in the file holds
            columns.append(np.r_[False, on[mine]][np.searchsorted(time[mine], starts, side="right")])
        return np.stack(columns, axis=1)

    def switches(self, n: int) -> Switches:
        """The events of the clients in seconds from `start`, in order of time."""
        of_width(self._table, n)
        return self._switches

    @cached_property
    def _switches(self) -> Switches:
        devices, _, seconds, states = np.asarray(self.events).T
        time, names = seconds.astype(np.float64) - self.start, list(dict.fromkeys(devices.tolist()))
        if self.clients is not None:
            names = [names[k] for k in np.flatnonzero(self._everybody.any(axis=0))[: self.clients]]
        number = {name: i for i, name in enumerate(names)}
        client = np.array([number.get(device, -1) for device in devices.tolist()])
        order = np.flatnonzero((time >= 0) & (client >= 0))
        order = order[np.argsort(time[order], kind="stable")]
        return Switches(float(time.max()), time[order], client[order], np.isin(states, self.on)[order])


@part
class Grid:
    """A table (rounds, devices) of 1 available, 0 not and -1 unknown, such as FLASH's phones by the half-hour.

    `grid` is the table or the path of an .npz file that holds it under the name `key`. An unknown entry
    counts as away, or as available with `unknown = true`. Clients are all devices, or the first `clients`
    that are ever available. One line is one round; after the last the first follows again.
    """

    grid: npt.ArrayLike | os.PathLike[str] | str
    unknown: bool = False
    clients: int | None = None
    key: str = "avail"

    def __post_init__(self) -> None:
        path = self.grid if isinstance(self.grid, str | os.PathLike) else None
        given = self.grid if path is None else _read(Path(path), self.key)
        try:
            grid = np.array(given)
        except ValueError:  # numpy's word for rows that differ in length
            grid = np.array([])
        where = "grid" if path is None else f"{path}: {self.key}"
        ok = grid.ndim == 2 and grid.size > 0 and bool(np.isin(grid, (-1, 0, 1)).all())
        require(ok, f"{where} must be (rounds, devices) of -1, 0 and 1, got {grid.dtype} of shape {grid.shape}")
        keep(self, "grid", grid.astype(np.int8))
        first_available(self._table, self.clients)

    probs, rows, recording = shares, replay, _recording

    @cached_property
    def _table(self) -> Mask:
        grid = np.asarray(self.grid)
        return first_available((grid == 1) | (self.unknown & (grid == -1)), self.clients)


def _read(path: Path, key: str) -> npt.ArrayLike:
    with reading(path, ".npz file"):
        arrays = read_arrays(path)
    require([*arrays] != [""], f"{path}: must be an .npz file, got a single array")
    require(key in arrays, f"{path}: has no array {key!r}, only {sorted(arrays)}")
    return arrays[key]


def _checked(rows: Any, name: str) -> npt.NDArray[np.str_]:
    """(events, 4) as text."""
    ok = isinstance(rows, np.ndarray | list | tuple)
    require(ok, f"{name}: must be a list of events or a file of them, got {shown(rows)}")
    require(len(rows) > 0, f"{name}: must hold at least one event, got none")
    for number, row in enumerate(rows, 1):
        if not _is_event(row):  # the sentence is made only then: to print rows takes longer than to read them
            what = f"{name}: event {number} must be {', '.join(EVENT)} with seconds as t_s"
            raise BadInput(f"{what}, got {shown(row)}")
    return np.array([["" if cell is None else str(cell) for cell in row] for row in rows])


def _is_event(row: Any) -> bool:
    try:
        whole = isinstance(row, np.ndarray | list | tuple) and len(row) == 4
        return whole and math.isfinite(float(row[2])) and row[0] is not None and row[3] is not None
    except (TypeError, ValueError):
        return False


def _of_variant(events: npt.NDArray[np.str_], variant: str | None, name: str) -> npt.NDArray[np.str_]:
    there = sorted(set(events[:, 1].tolist()))
    if variant is None:
        require(len(there) == 1, f"{name}: has several variants, variant must be one of {there}, got none")
        return events
    require(variant in there, f"{name}: variant must be one of {there}, got {variant!r}")
    return np.asarray(events[events[:, 1] == variant])

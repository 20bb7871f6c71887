"""The clock of a simulation: a pace, a latency, and presence in seconds; or a timeline from a file."""

import csv
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedstale.core import LATER, BadInput, Floats, Participation, PositiveFinite, keep, part, require, stream
from fedstale.core.text_files import open_text
from fedstale.participation.clock.latency import Latency, Load, Lognormal
from fedstale.participation.clock.pace import Pace, Rounds
from fedstale.participation.clock.presence import changes
from fedstale.participation.clock.timeline import Row, timeline
from fedstale.participation.files import reading

COLUMNS = ("step", "seconds", "bytes_up", "bytes_down", "lost", "idle", "client", "age")  # of a file


@part
class Clock:
    """How long clients take (`latency`), and when the server steps (`pace`).

    A row of the participation holds for `round_seconds`; recorded events know their seconds, and need none. With
    `replay`, the table of a timeline or the path of its .csv file (`Clock.save`), nothing is drawn. With `hours` a
    run ends with the last step within them, so that servers of any pace have the same time.
    """

    pace: Pace = Rounds()
    latency: Latency = Lognormal()
    round_seconds: PositiveFinite | None = None
    replay: npt.ArrayLike | os.PathLike[str] | str | None = None
    hours: PositiveFinite | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        if self.replay is not None:
            drawn = (self.pace, self.latency, self.round_seconds) != (Rounds(), Lognormal(), None)
            require(not drawn, "a replayed timeline has its own times: leave out pace, latency and round_seconds")
            path = self.replay if isinstance(self.replay, str | os.PathLike) else None
            keep(self, "replay", _checked(_read(Path(path)) if path else self.replay, path or "replay"))

    def waits(self, n: int) -> bool:
        """Whether every update is trained on the parameters of now: the server waits for those whom it asks."""
        if self.replay is not None:
            return bool((np.asarray(self.replay)[:, COLUMNS.index("age")] <= 0).all())
        return self.pace.rule(n).together

    def rows(self, who: Participation, n: int, load: Load, seed: int) -> Iterator[Row]:
        """The timeline of a run, one row per step."""
        if self.replay is not None:
            return _replayed(np.asarray(self.replay), n)
        rule = self.pace.rule(n)
        need = rule.arrivals or 0
        require(need <= n or not rule.together, f"pace.need must be at most the {n} clients, got {need}")
        presence = changes(who, n, self.round_seconds, stream(seed, "participation"))
        return timeline(n, presence, self.latency, self.pace, load, seed)

    def within(self, rows: Iterable[Row], rounds: int) -> list[Row]:
        """The first `rounds` steps of a timeline, or those that are within the hours."""
        last = math.inf if self.hours is None else 3600 * self.hours
        return [*takewhile(lambda row: row.seconds <= last, islice(rows, rounds))]

    @staticmethod
    def save(rows: Iterable[Row], path: str | os.PathLike[str]) -> None:
        """Write a timeline as a .csv file: a line for each arrival, and one with client -1 for each step."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(COLUMNS)
            for t, r in enumerate(rows, 1):
                step = (t, r.seconds, r.bytes_up, r.bytes_down, r.lost, r.idle)
                pairs = [(-1, -1), *zip(r.clients.tolist(), r.ages.tolist(), strict=True)]
                csv.writer(file).writerows((*step, *pair) for pair in pairs)


def _read(path: Path) -> list[list[float]]:
    with reading(path, "timeline"), open_text(path) as file:
        lines = csv.reader(file)
        header = tuple(next(lines, ()))
        require(header == COLUMNS, f"{path}: needs the columns {', '.join(COLUMNS)}, got {', '.join(header)}")
        return [[float(cell) for cell in line] for line in lines]


def _checked(given: Any, where: object) -> Floats:
    try:
        table = np.array(given, np.float64)
    except (TypeError, ValueError):
        table = np.zeros(0)
    ok = table.ndim == 2 and table.shape[1:] == (len(COLUMNS),) and bool(np.isfinite(table).all())
    require(ok, f"{where}: must be a table of numbers with the columns {', '.join(COLUMNS)}")
    step, client, age = table[:, 0], table[:, 6], table[:, 7]
    whole = table[:, [0, 6, 7]]
    ok = bool((whole == whole.round()).all()) and len(np.unique(whole[:, :2], axis=0)) == len(whole)
    require(ok, f"{where}: step, client and age must be whole numbers, and a client can be in a step once")
    ok = step[0] == 1 and bool(np.isin(np.diff(step), (0, 1)).all() and (np.diff(table[:, 1]) >= 0).all())
    require(ok, f"{where}: steps must be 1, 2, 3 … in order of time")
    ok = bool((client[np.diff(step, prepend=0) == 1] == -1).all() and (client >= -1).all() and (age < step).all())
    require(ok, f"{where}: a step begins with a line of client -1, and no age reaches back before step 1")
    return table


def _replayed(table: Floats, n: int) -> Iterator[Row]:
    """The rows of a table; versions are kept as long as a later row needs them."""
    most = int(table[:, 6].max())
    require(most < n, f"the timeline has a client {most}; there are {n} clients")
    begins = np.flatnonzero(table[:, 6] == -1)
    lines = table[table[:, 6] >= 0]
    start, used = lines[:, 0] - 1 - lines[:, 7], lines[:, 0]  # version that it was trained on, step that uses it
    for lot in np.split(table, begins[1:]):
        t, came = int(lot[0, 0]), lot[1:][np.argsort(lot[1:, 6])]
        waiting = np.unique(start[(used > t) & (start < t)]).astype(np.int64)
        clients, ages = came[:, 6].astype(np.int64), came[:, 7].astype(np.int64)
        seconds, up, down, lost, idle = lot[0, 1:6].tolist()
        yield Row(clients, ages, seconds, int(up), int(down), int(lost), idle, waiting)
    raise BadInput(f"the timeline has {len(begins)} steps, and the run needs more")

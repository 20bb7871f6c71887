"""Logs of presence with names and times, as servers and hospitals have them: visits, sessions or counts."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Mask, keep, known, part, require, shown
from fedstale.core.abilities import in_order
from fedstale.core.text_files import csv_lines, open_text
from fedstale.participation.files import reading
from fedstale.participation.trace import columns, of_width, replay, shares

WHO = ("client", "device", "hospital", "site", "node", "user", "participant", "station", "sensor", "name", "id")
WHEN = ("timestamp", "time", "datetime", "date", "day", "when", "ts", "at", "seen")
FROM, TO = ("from", "start", "begin", "since", "login", "on"), ("to", "end", "stop", "until", "logout", "off")
COUNT = ("count", "visits", "n", "number", "rounds", "updates")
UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
MOST = 2**28  # entries of the table that a log becomes
EXAMPLES = "2026-03-01, 2026-03-01T08:30, 01.03.2026 08:30 or seconds since 1970"


class Columns(NamedTuple):
    """Where in a line of a log the client, the time, the end of a session and a count stand."""

    who: int
    when: int
    end: int | None = None
    counted: int | None = None


@part
class Log:
    """A client is there in a round if the log has it at any time of the round.

    `log` is the path of a .csv file (.gz, .bz2 and .xz are fine) whose first line names its columns: a client and a
    timestamp; a client and the start and end of a session; or a client, a day and a count, which is above 0 where
    the client came. Columns are known by their names (client, hospital, device, …; timestamp, time, date, …; from
    and to, start and end), others by what they hold, or `client` names the first. Times are ISO 8601 or
    31.12.2026 08:30, in UTC unless they say otherwise, or seconds since 1970.
    Or it is a list of (client, time) or (client, from, to).
    A round is `round` long: "1d", "6h", "30min", "1w"; the first begins with the one that holds the first entry.
    Clients are sorted by name and matched by name with those of the data. After the last round the first follows.
    """

    log: Sequence[Sequence[str | float]] | npt.NDArray[Any] | os.PathLike[str] | str
    round: str = "1d"
    client: str | None = None

    def __post_init__(self) -> None:
        seconds(self.round)
        path = self.log if isinstance(self.log, str | os.PathLike) else None
        rows = _given(self.log) if path is None else _read(Path(path), self.client)
        require(len(rows) > 0, f"{path or 'log'}: must have at least one entry, got none")
        keep(self, "log", np.array(rows))
        self._table  # noqa: B018  # refuses a round that is too short

    probs, rows = shares, replay

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The clients, in the order of the table's columns."""
        return tuple(in_order(np.asarray(self.log)[:, 0].tolist()))

    def recording(self, n: int | None = None) -> Mask:
        """(rounds, n) who is there; all clients if n is left out."""
        return of_width(self._table, n)

    def ordered(self, names: Sequence[str]) -> "Log":
        """The log of these clients in this order; the rounds are still those of the whole log."""
        made = Log(self.log, self.round)
        keep(made, "names", tuple(names))
        keep(made, "_table", columns(self._table, self.names, names))
        return made

    @cached_property
    def _table(self) -> Mask:
        log, length = np.asarray(self.log), seconds(self.round)
        start, end = log[:, 1].astype(np.float64), log[:, 2].astype(np.float64)
        day = math.floor(start.min() / 86400) * 86400
        zero = day + math.floor((start.min() - day) / length) * length
        first = np.floor((start - zero) / length).astype(np.int64)
        last = np.maximum(first, np.ceil((end - zero) / length).astype(np.int64) - 1)  # an end is not a presence
        rounds, place = int(last.max()) + 1, {name: k for k, name in enumerate(self.names)}
        size = rounds * len(place)
        told = f"{rounds} rounds of {len(place)} clients"
        require(size <= MOST, f"round = {self.round!r} makes {told}: take a longer one")
        table = np.zeros((rounds, len(place)), np.bool_)
        for name, a, b in zip(log[:, 0].tolist(), first.tolist(), last.tolist(), strict=True):
            table[a : b + 1, place[name]] = True
        return table


def seconds(text: str) -> float:
    """The length of `1d`, `6h` or `30min`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d|w)\s*", text)
    length = float(found[1]) * UNITS[found[2]] if found else 0.0
    require(length > 0, f'round must be a time such as "1d", "6h", "30min" or "1w", got {shown(text)}')
    return length


def is_log(header: Sequence[str], first: Sequence[str] = ()) -> bool:
    """Whether a file is a log: its header names a client and a time, or the line after it has a text and a date."""
    names = [_plain(cell) for cell in header]
    named = any(_is(name, WHO) for name in names) and any(_is(name, (*WHEN, *FROM)) for name in names)
    return (named or {"date", "text"} <= {*map(_kind, first)}) and "t_s" not in names


def _kind(cell: str) -> str:
    """Whether a cell is a number or empty, a date, or another text."""
    text = cell.strip()
    if not text or re.fullmatch(r"[+-]?[\d.,]+", text):
        return "date" if _moment(text) and text.count(".") == 2 else "number"
    return "date" if _moment(text) or re.match(r"\d+[-/]\d+[-/]\d+", text) else "text"


def _plain(cell: str) -> str:
    return cell.strip().lower().replace(" ", "_")


def _is(name: str, words: Sequence[str]) -> bool:
    """Whether a column is called by one of these words: `hospital`, `hospital_id`, `start_time`."""
    pieces = name.removesuffix("_id").removesuffix("_name").removesuffix("_time").removesuffix("_date")
    return name in words or pieces in words


def _columns(header: Sequence[str], first_row: Sequence[str], client: str | None, path: Path) -> Columns:
    """The columns of a log, guessed from their names, and what names do not tell from the line after them."""
    named = "date" not in map(_kind, header)
    require(named, f"{path} must begin with a line that names its columns, got {', '.join(header)}")
    names = [_plain(cell) for cell in header]
    kinds = [_kind(cell) for cell in first_row]
    dates = [k for k, kind in enumerate(kinds) if kind == "date"]

    def first(words: Sequence[str]) -> int | None:
        return next((k for k, name in enumerate(names) if k != who and _is(name, words)), None)

    who: int | None = None
    if client is not None:
        who = [*header].index(known(client, dict.fromkeys(header), f"{path}: column"))
    elif (who := first(WHO)) is None and "text" in kinds:
        who = kinds.index("text")
    when, start, end, count = (first(words) for words in (WHEN, FROM, TO, COUNT))
    if when is None and start is None and dates:
        when = dates[0]
        start, end = (dates[0], dates[1]) if len(dates) > 1 else (None, None)
    when = start if start is not None and end is not None else when
    if who is None or when is None:
        told = "a client and a timestamp, a client, from and to, or a client, a date and a count"
        raise BadInput(f"{path} must have columns for {told}, got {', '.join(header)}")
    return Columns(who, when, end if start is not None else None, count if start is None else None)


def _read(path: Path, client: str | None) -> list[tuple[str, float, float]]:
    """(client, from, to) of every entry of a log; a moment begins and ends at the same time."""
    with reading(path, "presence log"), open_text(path) as file:
        lines = csv_lines(file)
        header: list[str] = next(lines, [])
        first: list[str] = next(lines, [])
        columns = _columns(header, first, client, path)
        return list(_entries(first, lines, columns, len(header), path))


def _entries(
    first: list[str], lines: Any, columns: Columns, width: int, path: Path
) -> Iterator[tuple[str, float, float]]:
    for cells in chain([first], lines):
        if not any(cell.strip() for cell in cells):
            continue
        where = f"{path}, line {lines.line_num}"
        require(len(cells) == width, f"{where}: {len(cells)} entries, the first line has {width}")
        if columns.counted is not None and not _count(cells[columns.counted], where):
            continue
        start = _time(cells[columns.when], where)
        end = start if columns.end is None else _time(cells[columns.end], where)
        name = cells[columns.who].strip()
        require(name != "", f"{where}: the entry names no client")
        times = f"{cells[columns.when]} to {cells[columns.end or 0]}"
        require(end >= start, f"{where}: {name} leaves before it comes: {times}")
        yield name, start, end


def _count(cell: str, where: str) -> float:
    try:
        found = float(cell or 0)
    except ValueError:
        found = math.nan
    require(found >= 0, f"{where}: the count must be a number of at least 0, got {shown(cell)}")
    return found


def _time(cell: str | float, where: str) -> float:
    """Seconds since 1970; what names no zone is in UTC."""
    text = str(cell).strip()
    try:
        number = float(text)
        return number / 1000 if number > 1e11 else number  # some count milliseconds
    except ValueError:
        pass
    moment = _moment(text)
    if moment is None:
        hint = ": is the day or the month first?" if "/" in text else ""
        raise BadInput(f"{where}: a time must be such as {EXAMPLES}, got {shown(cell)}{hint}")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _moment(text: str) -> datetime | None:
    """The time that a text names as ISO 8601, or with the day first and points: 31.12.2026 08:30."""
    iso = re.sub(r"^(\d{1,2})\.(\d{1,2})\.(\d{4})", lambda d: f"{d[3]}-{int(d[2]):02}-{int(d[1]):02}", text)
    try:
        return datetime.fromisoformat(iso)
    except ValueError:
        return None


def _given(rows: Any) -> list[tuple[str, float, float]]:
    """The same of a list of (client, time) or (client, from, to)."""
    found, listed = [], isinstance(rows, Sequence) or (isinstance(rows, np.ndarray) and rows.ndim > 0)
    require(listed, f"log must be a file, or a list of (client, time) or (client, from, to), got {shown(rows)}")
    for k, row in enumerate(rows, 1):
        ok = isinstance(row, tuple | list | np.ndarray) and len(row) in (2, 3)
        require(ok, f"log: entry {k} must be (client, time) or (client, from, to), got {shown(row)}")
        start, end = (_time(cell, f"log, entry {k}") for cell in (row[1], row[-1]))
        require(end >= start, f"log, entry {k}: {row[0]} leaves before it comes")
        found.append((str(row[0]), start, end))
    return found

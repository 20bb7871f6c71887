"""Replay of who was there, from a table that was measured or made elsewhere."""

import bz2
import csv
import gzip
import lzma
import os
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, BadInput, Mask, part, require
from fedstale.participation import recorded
from fedstale.participation.groups import Kind

OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@part
class Trace:
    """The rows of a 0/1 table, one per round; past its end it starts again.

    `matrix` is a 2-D array or the path of a .csv (a header line and .gz, .bz2 or .xz are fine), .npy or
    .npz file with one. Rounds × clients or clients × rounds: the side whose length is n is the clients
    (both are: rounds × clients), unless `clients_first` says. `probs` are each client's share of the
    rounds of the whole trace. Nothing is drawn: every seed sees the same rows.
    """

    matrix: npt.ArrayLike | os.PathLike[str] | str
    clients_first: bool | None = None

    def __post_init__(self) -> None:
        given = self.matrix
        table = _table(_read(Path(given)) if isinstance(given, str | os.PathLike) else given)
        table.flags.writeable = False
        object.__setattr__(self, "matrix", table)

    def probs(self, n: int) -> Array:
        return recorded.shares(self._rounds(n))

    def kinds(self, n: int) -> Iterator[Kind]:
        return recorded.kinds(self._rounds(n))

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        return recorded.replay(self._rounds(n))

    def _rounds(self, n: int) -> Mask:
        """The table as rounds × clients."""
        table: Mask = np.asarray(self.matrix)
        clients_first = table.shape[1] != n if self.clients_first is None else self.clients_first
        turned = table.T if clients_first else table
        sides = f"{table.shape[0]} × {table.shape[1]}"
        known = "" if self.clients_first is None else f" with clients_first={self.clients_first}"
        require(turned.shape[1] == n, f"the trace is {sides}{known}, which has no side of {n} clients")
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


def _read(path: Path) -> npt.ArrayLike:
    try:
        if ".csv" in path.suffixes[-2:]:
            return _csv(path)
        allowed = path.suffix in (".npy", ".npz")
        require(allowed, f"a trace file must end in .csv, .csv.gz, .csv.xz, .npy or .npz, got {path}")
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            names = loaded.files
            require(len(names) == 1, f"{path} must hold one array, got {len(names)}: {names}")
            return np.asarray(loaded[names[0]])
    except BadInput:
        raise
    except (OSError, EOFError, ValueError, csv.Error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise BadInput(f"the trace file {path} cannot be read: {error or type(error).__name__}") from error


def _csv(path: Path) -> npt.ArrayLike:
    """The table of a CSV file; a first line without a number in it is a header."""
    rows: list[list[bool]] = []
    with OPEN.get(path.suffix, open)(path, "rt", newline="", encoding="utf-8-sig") as file:
        for cells in (lines := csv.reader(file)):
            values = [_entry(cell) for cell in cells]
            if not cells or (lines.line_num == 1 and {*values} == {"word"}):
                named = {cell.strip().lower() for cell in cells}
                pairs = named & {"round", "client", "device", "t", "time"}
                require(len(pairs) < 2, f"{path} has columns {', '.join(cells)}; a trace has a column per client")
                continue
            where, width = f"{path}, line {lines.line_num}", len(rows[0]) if rows else len(cells)
            require(len(cells) == width, f"{where}: {len(cells)} entries, the rows before have {width}")
            for column, (cell, value) in enumerate(zip(cells, values, strict=True), 1):
                if not isinstance(value, bool):
                    raise BadInput(f"{where}, column {column}: must be 0 or 1, got {cell!r}")
            rows.append([value is True for value in values])
    require(len(rows) > 0, f"the trace file {path} has no rounds in it")
    return rows


@cache
def _entry(cell: str) -> bool | str:
    """0 or 1 as a truth value, else what it is."""
    text = cell.strip().lower()
    if text in ("true", "false"):
        return text == "true"
    try:
        return {0.0: False, 1.0: True}.get(float(text), "number")
    except ValueError:
        return "word" if text else "nothing"

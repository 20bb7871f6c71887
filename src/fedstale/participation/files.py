"""Reading recorded participation: 0/1 tables, arrays and on/off events. Nothing is ever unpickled."""

import csv
import json
import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, require, shown
from fedstale.core.text_files import OPEN, csv_lines, open_text

BROKEN = (OSError, EOFError, ValueError, RecursionError, csv.Error, lzma.LZMAError, zlib.error, zipfile.BadZipFile)
EVENT = ("device", "variant", "t_s", "state")  # the columns of an event
INDEX = ("", "unnamed: 0", "index", "round", "t", "time")  # names of a first column that numbers the rows
DATED = ("date", "day", "timestamp", "datetime", "week", "hour")  # of one that dates them: what follows are counts


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Whatever goes wrong while a file is read is told in one sentence."""
    try:
        yield
    except BadInput:
        raise
    except BROKEN as error:
        raise BadInput(f"the {what} {path} cannot be read: {error or type(error).__name__}") from None


def read_table(path: Path) -> npt.ArrayLike:
    """The 0/1 table of a .csv, .npy or .npz file."""
    with reading(path, "trace file"):
        if ".csv" in path.suffixes[-2:]:
            return _csv_table(path)
        allowed = path.suffix in (".npy", ".npz")
        require(allowed, f"a trace file must end in .csv, .csv.gz, .csv.xz, .npy or .npz, got {path}")
        return read_array(path)


def read_array(path: Path) -> npt.NDArray[Any]:
    """The one array of an .npy or .npz file."""
    found = read_arrays(path)
    require(len(found) == 1, f"{path} must hold one array, got {len(found)}: {[*found]}")
    return next(iter(found.values()))


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz file by name, or the one of an .npy file, whose name is empty."""
    with path.open("rb") as file:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                return {m.filename.removesuffix(".npy"): _array(archive.open(m), m.file_size) for m in members}
        file.seek(0)
        return {"": _array(file, path.stat().st_size)}


def _array(file: IO[bytes], size: int) -> npt.NDArray[Any]:
    """An array in .npy format; a header that claims more than the `size` bytes that there are is refused."""
    version = np.lib.format.read_magic(file)
    require(version in ((1, 0), (2, 0)), f"the array format {version} is unknown; known: 1.0 and 2.0")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read(file)
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError("only plain arrays of numbers are read")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > size:
        raise ValueError(f"it claims {claimed} bytes and has {size}")
    return np.frombuffer(file.read(claimed), dtype).reshape(shape, order="F" if by_column else "C")


def _csv_table(path: Path) -> list[list[bool]]:
    """Rows of 0 and 1. The first line may be a header, and with one the first column may number the rows."""
    rows: list[list[bool]] = []
    numbered, entry = False, _entry
    with open_text(path) as file:
        for cells in (lines := csv_lines(file)):
            if not cells:
                continue
            if lines.line_num == 1 and _is_header(cells, path):
                numbered = cells[0].strip().lower() in (*INDEX, *DATED)
                entry = _counted if cells[0].strip().lower() in DATED else _entry
                continue
            cells, where = cells[numbered:], f"{path}, line {lines.line_num}"
            width = len(rows[0]) if rows else len(cells)
            require(len(cells) == width, f"{where}: {len(cells)} entries, the rows before have {width}")
            values = [entry(cell) for cell in cells]
            for column, (cell, value) in enumerate(zip(cells, values, strict=True), 1 + numbered):
                require(isinstance(value, bool), f"{where}, column {column}: must be 0 or 1, got {shown(cell)}")
            rows.append([value is True for value in values])
    require(len(rows) > 0, f"the trace file {path} has no rounds in it")
    return rows


def read_names(path: Path) -> tuple[str, ...]:
    """The names of the columns of a .csv table; none where it has no header, or one that only counts."""
    if ".csv" not in path.suffixes[-2:]:
        return ()
    with reading(path, "trace file"), open_text(path) as file:
        cells: list[str] = next(csv_lines(file), [])
    if not cells or not _is_header(cells, path):
        return ()
    names = tuple(cell.strip() for cell in cells[cells[0].strip().lower() in (*INDEX, *DATED) :])
    return () if names == tuple(map(str, range(len(names)))) or len({*names}) < len(names) else names


def _is_header(cells: list[str], path: Path) -> bool:
    """Whether a first line names columns: by words only, or as pandas writes it, with an index in front."""
    names = [cell.strip().lower() for cell in cells]
    pairs = {*names} & {"round", "client", "device", "t", "time"}
    require(
        len(pairs) < 2,
        f'{path} has columns {", ".join(cells)}; a trace has a column per client, kind = "log" is for these',
    )
    return (names[0] in (*INDEX, *DATED) and len(names) > 1) or {_entry(cell) for cell in cells} == {"word"}


@cache
def _counted(cell: str) -> bool | str:
    """Whether a count is above 0, else what it is; nothing is 0."""
    try:
        return float(cell or 0) > 0 if float(cell or 0) >= 0 else "number"
    except ValueError:
        return _entry(cell)


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


def read_events(path: Path) -> list[list[Any]]:
    """The events (device, variant, t_s, state) of a .csv or .json file, which may be packed."""
    kind = path.with_suffix("").suffix if path.suffix in OPEN else path.suffix
    require(kind in (".csv", ".json"), f"an event file must end in .csv or .json, or .gz or .xz of it, got {path}")
    with reading(path, "event file"), open_text(path) as file:
        return list(_csv_events(file, path) if kind == ".csv" else _json_events(json.load(file), path))


def _csv_events(file: IO[str], path: Path) -> Iterator[list[Any]]:
    rows = csv.DictReader(file)
    header = list(rows.fieldnames or ())
    require({"device", "t_s", "state"} <= {*header}, f"{path}: needs the columns device, t_s, state, got {header}")
    for row in rows:
        yield [row.get(column) for column in EVENT]


def _json_events(data: Any, path: Path) -> Iterator[list[Any]]:
    for item in data.items() if isinstance(data, dict) else data if isinstance(data, list) else [data]:
        match item:
            case (device, {"active": list(active), "inactive": list(inactive)}):
                yield from ([device, None, time, "AVL_TRAIN"] for time in active)
                yield from ([device, None, time, "UN_AVL"] for time in inactive)
            case {"device": device, "t_s": time, "state": state, **rest}:
                yield [device, rest.get("variant"), time, state]
            case [*cells] if len(cells) == 4:
                yield cells
            case _:
                raise BadInput(f"{path}: must be a list of records with {', '.join(EVENT)}, got {shown(item)}")

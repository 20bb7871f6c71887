"""Reading the files that users bring: recorded participation, and one number per client."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core import BadInput, Floats, Mask, require
from fedstale.experiments.build import RECORDINGS
from fedstale.experiments.spec import build, override
from fedstale.participation.files import BROKEN, open_text, read_arrays
from fedstale.registry import PARTICIPATION


def read_trace(path: Path, changes: list[str], clients_first: bool = False) -> Mask:
    """(rounds, clients) of a 0/1 table, an event list or a grid; `changes` are settings of it, key=value."""
    settings: dict[str, Any] = {}
    for change in changes:
        override(settings, change)
    kind = _kind(path, settings)
    require(path.is_file(), f"there is no trace file {path}")
    part: Any = build({"kind": kind, RECORDINGS[kind]: str(path), **settings}, PARTICIPATION, kind)
    table: Mask = part.recording()
    return table.T if clients_first else table


def _kind(path: Path, settings: dict[str, Any]) -> str:
    """Events have a column t_s or are JSON; a grid is an .npz file with an array `avail`, or `key` names one."""
    if ".json" in path.suffixes[-2:]:
        return "events"
    try:
        if path.suffix == ".npz":
            return "grid" if {"key", "unknown"} & {*settings} or "avail" in read_arrays(path) else "trace"
        if ".csv" in path.suffixes[-2:]:
            with open_text(path) as file:
                return "events" if "t_s" in file.readline(1000) else "trace"
    except BROKEN:
        pass  # reading it says what is wrong
    return "trace"


def read_numbers(text: str, what: str) -> Floats:
    """`0.9,0.05`, or the path of a .npy or text file of numbers, or of a CSV file with a column p or share."""
    try:
        return np.array(text.replace(",", " ").split(), np.float64)
    except ValueError:
        pass
    path = Path(text)
    require(path.is_file(), f"{what} must be numbers such as 0.9,0.05 or a file of them; there is no file {text}")
    try:
        if path.suffix == ".npy":
            return np.asarray(next(iter(read_arrays(path).values())), np.float64).ravel()
        return np.array(_column(path.read_text(encoding="utf-8-sig")), np.float64)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{what} must be numbers or a .npy, .csv or text file of them, got {text}: {error}"
        ) from None


def _column(text: str) -> list[str]:
    header = next(csv.reader(io.StringIO(text)), [])
    for name in ("p", "probs", "share", "weight"):
        if name in header:
            return [row[name] for row in csv.DictReader(io.StringIO(text))]
    return text.replace(",", " ").split()

"""Whether the files of a run are as they were written: their checksums, the name of the folder, their shapes.

A finished run has `checksums.json`, which is written just before its result. A file is compared with it when it
is read, once per version of the file. Runs of earlier versions have none: of those the parameters are compared
with the fingerprint in their result, and the configuration, as always, with the name of the folder.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedstale.core import BadInput, require
from fedstale.lab.runs.metrics import NAMES, OF_FEDERATION, WINDOWS, evaluated

FILE, RESULT = "checksums.json", "result.json"
COVERED = (
    "config.json", "environment.json", "metrics.jsonl", "params.npy", "buffers.npy", "states.npz", "model.json",
    "clients.json",
)  # fmt: skip
OF_MODEL = ("params.npy", "buffers.npy", "states.npz", "model.json")  # which tables and pictures do not read
NAME = re.compile(r"-s\d+-([0-9a-f]{10})")
WAY = "the command that made the run computes it again"


def taken(folder: Path, result: bytes) -> dict[str, str]:
    """The checksums of the files of a run, whose result is about to be written."""
    files = {name: checksum(folder / name) for name in COVERED if (folder / name).exists()}
    return files | {RESULT: hashlib.sha256(result).hexdigest()}


def require_whole(path: Path) -> None:
    """Refuse a file of a finished run that is not as the run has written it, or is missing."""
    known = _known(path.parent) if (path.parent / RESULT).exists() else {}
    if known and (path.name in known or path.exists()):
        now = checksum(path) if path.is_file() else None
        what = "is not as the run has written it" if now else "is missing"
        require(now == known.get(path.name), f"{path} is damaged: it {what}; {WAY}")


def require_result_file(folder: Path) -> None:
    """Refuse a run that has been finished, as its checksums say, and whose result is gone."""
    lost = (folder / FILE).exists() and not (folder / RESULT).exists()
    require(not lost, f"{folder / RESULT} is damaged: it is missing; {WAY}")


def damage(folder: Path, names: Iterable[str] = (RESULT, *COVERED)) -> str:
    """What is wrong with the files of a finished run, or with some of them, if anything is."""
    try:
        require_result_file(folder)
        for name in names:
            require_whole(folder / name)
    except BadInput as error:
        return str(error)
    return ""


def checksum(path: Path) -> str:
    """The SHA-256 of a file, computed once for each version of it."""
    found = path.stat()
    return _checksum(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=65536)
def _checksum(path: Path, modified: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _known(folder: Path) -> Mapping[str, str]:
    path = folder / FILE
    if not path.exists():
        return {}
    found = path.stat()
    return _read(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=4096)
def _read(path: Path, modified: int, size: int) -> Mapping[str, str]:
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        known = None
    require(isinstance(known, dict) and RESULT in known, f"{path} is damaged: it has no checksums; {WAY}")
    return dict(known)


def require_named(path: Path, config: Mapping[str, Any], digest: str) -> None:
    """Refuse a configuration that is not the one which the name of its folder was made of."""
    name = NAME.search(path.parent.name)
    ok = name is None or path.parent.name[name.end() :] or name[1] == digest
    require(bool(ok), f"{path} is damaged: the name of its folder was made of another configuration; {WAY}")


def require_result(path: Path, result: Mapping[str, Any]) -> None:
    """Refuse a result without rounds, or with a metric that lacks a window."""
    ok = all(_number(result.get(key, 0)) for key in ("refused", "seconds", "rounds_per_second"))
    ok = ok and _number(result.get("rounds"))
    require(ok, f"{path} is damaged: its rounds and seconds must be numbers")
    for m in evaluated(result):
        windows = result[m.name]
        ok = isinstance(windows, dict) and all(_number(windows.get(w)) for w in WINDOWS)
        require(ok, f"{path} is damaged: {m.name} must have {', '.join(WINDOWS)}")


def require_clients(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse what is not one number, or null, for each client; its name is a text."""
    lists = [of for key, of in values.items() if isinstance(of, list) and all(_fits(key, v) for v in of)]
    ok = len(lists) == len(values) and len({len(of) for of in lists}) < 2
    require(ok, f"{path} is damaged: it must have lists of one number for each client")


def sound_line(line: Mapping[str, Any]) -> bool:
    """Whether a line of metrics has numbers where numbers belong, and clients where they are named."""
    known = NAMES | OF_FEDERATION if "asked" in line else NAMES
    for key, value in line.items():
        kinds = known.get(key, ())
        if not kinds:
            continue
        many = kinds[0] is list
        fits = {*map(type, value)}.issubset(kinds[1:]) if many and type(value) is list else type(value) in kinds[1:]
        if not fits or (kinds[-1] is int and (min(value, default=0) if many else value) < 0):
            return False
    return True


def _fits(key: str, value: object) -> bool:
    return isinstance(value, str) if key in ("name", "labels") else value is None or _number(value)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not (
        isinstance(value, int) and abs(value) > 2**63
    )  # fmt: skip

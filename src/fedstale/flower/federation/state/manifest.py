"""The manifest: which round was committed last, and which files belong to it, each with its checksum.

It is written last, so it is the commit point. Whatever does not agree with it is refused with a sentence: a
federation never goes on from a state that somebody has damaged, and never begins again by itself. All JSON files of
a federation carry a checksum of their own content, so that damage and edits are noticed.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedstale.core import BadInput, require
from fedstale.lab.runs.store import canonical, metrics_line, read_json, write_json

FORMAT = 3
RESTORE = "restore it from a backup"
COMMITTED = ("metrics.jsonl", "rows/*/*", "round-[1-9]*")  # files that are written from round 1 on


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object with its checksum; `read_sealed` gives it back without."""
    write_json(path, value | {"checksum": digest(value)})


def read_sealed(path: Path, advice: str, *, unsealed: bool = False) -> dict[str, Any]:
    """The object in a file, refused with `advice` if it was changed; with `unsealed` it may have no checksum."""
    value = read_json(path)
    found = value.pop("checksum", None)
    same = found == digest(value) or (unsealed and found is None)
    require(same, f"{path} was changed after it was written, its checksum is another; {advice}")
    return value


def digest(value: dict[str, Any]) -> str:
    """The checksum of an object, the same for the same content."""
    return hashlib.blake2b(canonical(value).encode()).hexdigest()[:32]


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The checked manifest of the last commit, or None before the first one."""
    path = folder / "manifest.json"
    require(folder.is_dir() or not folder.exists(), f"{folder} must be a folder, got a file")
    if not path.exists():
        left = [file for pattern in COMMITTED for file in folder.glob(pattern)]
        left += folder.parent.glob("status.json")
        why = f"but rounds were committed, see {left[0].name}" if left else ""
        require(not left, f"{path} is missing, {why}; {RESTORE}, or use another folder")
        return None
    found = read_json(path).get("format")
    require(found == FORMAT, f"{folder} has state format {found}, this version reads {FORMAT}")
    return read_sealed(path, RESTORE)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Commit what the manifest names; `read_manifest` gives it back."""
    write_sealed(folder / "manifest.json", {"format": FORMAT} | manifest)


def committed_round(folder: Path) -> int:
    """The last committed round, 0 before the first."""
    manifest = read_manifest(folder)
    return int(manifest["t"]) if manifest else 0


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """One record for each committed round, from metrics.jsonl."""
    manifest = read_manifest(folder)
    lines = metric_lines(folder, manifest) if manifest else []
    try:
        return [metrics_line(folder / "metrics.jsonl", k, line) for k, line in enumerate(lines, 1)]
    except BadInput as error:
        raise BadInput(f"{error}; {RESTORE}") from None


def read_line(folder: Path, t: int) -> dict[str, Any]:
    """The record of one of the last committed rounds, found from the end of metrics.jsonl."""
    with (folder / "metrics.jsonl").open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for span in (1 << 16, 1 << 24, size):
            file.seek(max(size - span, 0))
            for line in file.read().split(b"\n")[:-1]:
                if line.startswith(b'{"round":%d,' % t):
                    return metrics_line(folder / "metrics.jsonl", t, line)
    raise BadInput(f"{folder / 'metrics.jsonl'} has no line for round {t}; {RESTORE}")


def metric_lines(folder: Path, manifest: dict[str, Any]) -> list[bytes]:
    """The committed lines of metrics.jsonl, checked; a line that was never committed is left out."""
    path, t = folder / "metrics.jsonl", int(manifest["t"])
    require(path.is_file() or not path.exists(), f"{path} must be a file, got a folder; {RESTORE}")
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    require(len(lines) >= t, f"{path} has {len(lines)} lines, but {t} rounds were committed; {RESTORE}")
    same = manifest.get("metrics", chained(lines[:t])) == chained(lines[:t])  # earlier versions kept no checksum
    require(same, f"{path} is damaged, its checksum is not the manifest's; {RESTORE}")
    return lines[:t]


def chained(lines: Iterable[bytes], start: str = "") -> str:
    """The checksum of lines after those of checksum `start`: one more line needs no look at the earlier ones."""
    for line in lines:
        start = hashlib.blake2b(start.encode() + line, digest_size=16).hexdigest()
    return start


def checksum(path: Path) -> str:
    """The checksum of a file's content, as manifests hold it."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); {RESTORE}") from None


def verified(folder: Path, name: str, expected: str, copy: Path | None = None) -> Path:
    """The path of a committed file, or of a copy that is made of it, whose content is what was committed."""
    place = folder / name
    there = place.is_file()
    found = shutil.copyfile(place, copy) if there and copy else place
    same = there and checksum(found) == expected
    require(same, f"{place} is damaged or missing, its checksum is not the manifest's; {RESTORE}")
    return found

"""JSON files that carry a checksum of their own content, so that damage and edits are noticed."""

import hashlib
from pathlib import Path
from typing import Any

from fedstale.core import require
from fedstale.lab.runs.store import canonical, read_json, write_json


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

"""The audit log of a federation, DIR/logs/audit.jsonl: who joined, was removed or refused, and who started code.

A line has the time, the event, the account of the process that noted it, and what else is known. It is only ever
appended to, and only the owner can read it.
"""

import getpass
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "audit.jsonl"
MOST = 1000  # different refusals that a link notes until it is started again


def note(folder: Path, event: str, about: Mapping[str, Any] = {}) -> None:
    """Append an event; several processes may do so at once."""
    path = folder / "logs" / FILE
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, "by": getpass.getuser()}
    text = json.dumps(line | dict(about)).encode() + b"\n"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb", buffering=0) as file:
        file.write(text)


def read(folder: Path) -> list[dict[str, Any]]:
    """All events, oldest first."""
    path = folder / "logs" / FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


class Once:
    """Notes the same event about the same client or address once, so that nobody can fill the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.noted = folder, set[str]()

    def __call__(self, event: str, about: Mapping[str, Any]) -> None:
        line = json.dumps([event, dict(about)])
        if line not in self.noted and len(self.noted) < MOST:
            self.noted.add(line)
            note(self.folder, event, about)

"""The audit log of a federation, DIR/logs/audit.jsonl: who joined, was removed or refused, and who started code.

A line has the time, the event, the account of the process that noted it, and what else is known. It is only ever
appended to, and only the owner can read it. The server's own log has one JSON object per line, too, in files that
are rotated.
"""

import datetime
import getpass
import json
import logging
import os
import time
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

FILE = "audit.jsonl"
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
SIZE, FILES = 10 << 20, 5  # bytes of a file of the server's log, and how many old ones are kept
MOST = 1000  # different refusals that a link notes until it is started again


def note(folder: Path, event: str, about: Mapping[str, Any] = {}) -> None:
    """Append an event; several processes may do so at once."""
    path = folder / "logs" / FILE
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, "by": getpass.getuser()}
    text = json.dumps(line | dict(about)).encode() + b"\n"
    with os.fdopen(os.open(path, APPEND, 0o600), "wb", buffering=0) as file:
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


class AsJson(logging.Formatter):
    """A record as JSON: when, how grave, what, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        said = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


class _Private(RotatingFileHandler):
    def _open(self):  # type: ignore[no-untyped-def]  # whatever type logging gives it
        return os.fdopen(os.open(self.baseFilename, APPEND, 0o600), "a", encoding="utf-8")


def log_to(path: Path) -> None:
    """Send what the federation logs to a file; a second call for the same file changes nothing."""
    log = logging.getLogger("fedstale.flower.federation")
    if any(isinstance(h, _Private) and h.baseFilename == str(path.absolute()) for h in log.handlers):
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = _Private(path, maxBytes=SIZE, backupCount=FILES)
    handler.setFormatter(AsJson())
    log.addHandler(handler)
    log.setLevel(logging.INFO)

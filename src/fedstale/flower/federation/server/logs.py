"""The server's log: one JSON object per line, in files that are rotated and that only their owner can read."""

import datetime
import json
import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
SIZE, FILES = 10 << 20, 5  # bytes of a file, and how many old ones are kept


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

"""Flower's SuperLink behind our gate: `python -m fedstale.federation.ops.superlink DIR --host … --port …`.

DIR is the federation's folder; the other arguments are those of `flower-superlink`.
"""

import logging
import sqlite3
import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from flwr.superlink import extensions
from flwr.superlink.cli.flower_superlink import flower_superlink

from fedstale.federation.ops.gate import Gate, control_token, reply_limit

SPARE = 64 << 20  # bytes that deleted messages may leave in the database


def main() -> None:
    """Run the link; the gate is the outermost middleware of its app (pinned version: an extension's place)."""
    folder = Path(sys.argv.pop(1))
    gate = extensions.Middleware(Gate, token=control_token(folder), limit=partial(reply_limit, folder))
    extensions.get_middleware = lambda: (gate,)
    logging.getLogger("uvicorn.access").addFilter(lambda record: False)  # a line per poll of each client
    compact(folder / "link.sqlite")
    flower_superlink()


def compact(database: Path) -> None:
    """Give back the room of deleted messages, if there is much of it; nobody uses the database yet."""
    if not database.exists():
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as opened:  # the link will say what is wrong
        free, page = (opened.execute(f"PRAGMA {what}").fetchone()[0] for what in ("freelist_count", "page_size"))
        if free * page > SPARE:
            opened.execute("VACUUM")


if __name__ == "__main__":
    main()

"""Keepers start again what has ended: the link, its executor, the clients, and each other. They rotate logs, too.

A folder has two keepers, so that after the death of either the other one starts it again. They need no word from
the processes that they keep: DIR/pids says what is wanted. When nothing is left to keep, they end.

    python -m fedstale.flower.federation.ops.keeper DIR NAME
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

from fedstale.core import BadInput
from fedstale.flower.federation.ops import processes
from fedstale.flower.federation.ops.processes import Here

KEEPERS = ("keeper-a", "keeper-b")
LOOK = 1.0  # seconds between looks


class Folder(NamedTuple):
    """The federation in a folder; a keeper needs no settings."""

    folder: Path


def ensure(s: Here) -> None:
    """Start the keepers of a folder that are not there."""
    keeper = [sys.executable, "-m", "fedstale.flower.federation.ops.keeper", str(s.folder.resolve())]
    for name in KEEPERS:
        processes.revive(s, name, [*keeper, name])


def keep(s: Here, name: str) -> None:
    """Look after the processes of a folder, as the keeper of this name, until there is none."""
    troubles = set[str]()  # each is said once
    while processes.wanted(s, name) and (kept := [n for n in processes.names(s) if n not in KEEPERS]):
        for other in kept:
            try:
                if processes.revive(s, other):
                    _say(f"{other} had ended and is started again")
                processes.rotate(s, other)
            except (BadInput, OSError) as trouble:  # the others are kept all the same
                if str(trouble) not in troubles:
                    _say(str(trouble))
                troubles.add(str(trouble))
        ensure(s)
        time.sleep(LOOK)
    processes.forget(s, name)


def _say(what: str) -> None:
    print(f"{time.strftime('%F %T')} {what}", flush=True)


if __name__ == "__main__":
    keep(Folder(Path(sys.argv[1])), sys.argv[2])

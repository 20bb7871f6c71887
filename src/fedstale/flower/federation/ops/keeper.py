"""The keeper of a folder starts again what has ended: link, executor, clients, training. It rotates logs, too.

It needs no word from the processes that it keeps: DIR/pids says what is wanted. When nothing is left to keep, it
ends. Each of these processes looks after the keeper in turn, so that all must die at once for nothing to come back.

    python -m fedstale.flower.federation.ops.keeper DIR
"""

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from fedstale.core import BadInput
from fedstale.flower.federation.ops import processes

KEEPER = "keeper"
LOOK = 1.0  # seconds between looks


def ensure(folder: Path) -> None:
    """Start the keeper of a folder, if it is not there."""
    module = "fedstale.flower.federation.ops.keeper"
    processes.revive(folder, KEEPER, [sys.executable, "-m", module, str(folder.resolve())])


def keep(folder: Path) -> None:
    """Look after the processes of a folder until there is none."""
    troubles = set[str]()  # each is said once
    while processes.wanted(folder, KEEPER) and (kept := [n for n in processes.names(folder) if n != KEEPER]):
        for name in kept:
            try:
                if processes.revive(folder, name):
                    _say(f"{name} had ended and is started again")
                processes.rotate(folder, name)
            except (BadInput, OSError) as trouble:  # the others are kept all the same
                if str(trouble) not in troubles:
                    _say(str(trouble))
                troubles.add(str(trouble))
        time.sleep(LOOK)
    processes.forget(folder, KEEPER)


def keep_the_keeper() -> None:
    """Look after the keeper, in a thread, if this process is one that it keeps."""
    if own := os.environ.get(processes.KEPT):
        threading.Thread(target=_watch, args=[Path(own)], daemon=True).start()


def _watch(own: Path) -> None:
    folder = own.parent.parent
    while True:
        time.sleep(LOOK)
        with suppress(BadInput, OSError):  # what is wrong with a file is said by others
            if processes.wanted(folder, own.name):
                ensure(folder)


def _say(what: str) -> None:
    print(f"{time.strftime('%F %T')} {what}", flush=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))

"""What differs between operating systems: the cores that a process may use, and locks on files."""

import os
from typing import IO, Any

from fedstale.core.parts import BadInput


def cores() -> int:
    """CPU cores that this process may use; all of them where the system does not say (macOS)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def lock(file: IO[Any] | int, *, shared: bool = False, wait: bool = False) -> bool:
    """Take a lock on a file until it is closed or the process ends; false where another process has it."""
    try:
        import fcntl  # not on Windows
    except ModuleNotFoundError:
        raise BadInput("fedstale stores runs on Linux and macOS, on Windows inside WSL: no fcntl here") from None
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        return True
    except BlockingIOError:
        return False

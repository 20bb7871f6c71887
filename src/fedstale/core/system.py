"""What differs between operating systems: the cores and the memory of a process, locks on files; and a thread."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from fedstale.core.parts import BadInput
from fedstale.core.protocols import Task

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # glibc's names for mallopt
SHARE = 0.25  # of the machine's memory that runs in step may take


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


@contextmanager
def meanwhile(work: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `work` every so many seconds as long as the block lasts, in a thread of its own."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def runs_that_fit(task: Task, most: int) -> int:
    """Runs that may advance in step, at least one: each may keep n updates in memory and receive as many."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(most, int(SHARE * memory / (8 * task.n * task.d))))


def keep_memory() -> bool:
    """Let this process keep the memory that it frees: a model's activations are as large in the next step.

    Otherwise glibc returns it to the system and gets it back page by page, a seventh of the time of a ResNet.
    Returns whether malloc has such settings.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return all(mallopt(option, 1 << 30) == 1 for option in (MMAP_THRESHOLD, TRIM_THRESHOLD))


@contextmanager
def large_pages() -> Iterator[None]:
    """Processes that are started inside get memory from the system in large pages, where glibc and Linux have them.

    A core then looks up fewer addresses: 1 to 6 % of the time of a ResNet, LoRA or an LSTM.
    """
    name, wanted = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
    before = os.environ.get(name)
    if wanted not in (before or ""):
        os.environ[name] = ":".join(filter(None, [before, f"{wanted}=1"]))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

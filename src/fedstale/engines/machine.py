"""The memory that this process may use and keep."""

import ctypes
import os

from fedstale.core import Task

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # glibc's names for mallopt
SHARE = 0.25  # of the machine's memory that runs in step may take


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

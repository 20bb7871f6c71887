"""CPU cores and memory available to this process."""

import os

from fedstale.core import Task
from fedstale.kernels import cores

__all__ = ["cores", "runs_that_fit"]

SHARE = 0.25  # of the machine's memory that runs in step may take


def runs_that_fit(task: Task, most: int) -> int:
    """Runs that may advance in step, at least one: each may keep n updates in memory and receive as many."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(most, int(SHARE * memory / (8 * task.n * task.d))))

"""The cells of a sweep, computed side by side into one store; what was interrupted goes on."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from fedstale import experiment, store
from fedstale.simulate import Diverged
from fedstale.sweep import Cell

DIVERGED = "diverged.json"  # in the folder of a run that cannot be finished
PAUSE = 60.0  # seconds from one checkpoint to the next


def waiting(cell: Cell, folder: Path) -> list[experiment.Planned]:
    """The runs of a cell that are neither finished nor known to diverge."""
    planned = experiment.plan(cell.experiment, folder)
    return [p for p in planned if not p.folder.finished and not (p.folder.path / DIVERGED).exists()]


def compute(
    found: Sequence[Cell], folder: Path, *, jobs: int, resume: bool, command: str, say: Callable[[str], None]
) -> None:
    """All cells that are not there yet, `jobs` at a time, each in a process of its own."""
    todo, start = [cell for cell in found if waiting(cell, folder)], time.monotonic()
    if jobs == 1 or len(todo) <= 1:
        for k, cell in enumerate(todo, 1):
            _compute(cell, folder, resume, command, parent=None)
            say(_progress(k, len(todo), start))
        return
    work = partial(_compute, folder=folder, resume=resume, command=command, parent=os.getpid())
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        try:
            for k, done in enumerate(as_completed([pool.submit(work, cell) for cell in todo]), 1):
                done.result()
                say(_progress(k, len(todo), start))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()  # it saves a checkpoint and ends
            raise


def _progress(k: int, n: int, start: float) -> str:
    seconds = time.monotonic() - start
    return f"cell {k} of {n}, {seconds:.0f} s so far, about {seconds * (n - k) / k:.0f} s left"


def _compute(cell: Cell, folder: Path, resume: bool, command: str, parent: int | None) -> None:
    todo, stop = waiting(cell, folder), _Stop(parent)
    try:
        for _ in experiment.execute(cell.experiment, todo, resume=resume, command=command, pause=PAUSE, stop=stop):
            pass
    except experiment.Interrupted:
        if parent:
            os._exit(130)  # or a worker would begin the next cell
        raise
    except Diverged as error:  # the others are finished; these would diverge again
        for p in todo:
            if not p.folder.finished:
                store.write_json(p.folder.path / DIVERGED, {"why": str(error)})


class _Stop:
    """Asked after every round; the first signal ends the runs in good order, the second at once."""

    def __init__(self, parent: int | None) -> None:
        self.asked, self.parent = False, parent
        signal.signal(signal.SIGINT, self._ask)
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        if self.asked:
            os._exit(130)
        self.asked = True

    def __call__(self) -> bool:
        if self.parent and os.getppid() != self.parent:  # a worker whose result nobody waits for
            os._exit(130)
        return self.asked

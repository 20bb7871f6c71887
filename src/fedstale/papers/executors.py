"""The cells of a sweep, computed side by side into one store; what was interrupted goes on."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from enum import StrEnum
from functools import partial
from itertools import count
from pathlib import Path

from fedstale.core import require
from fedstale.experiments.execute import execute
from fedstale.experiments.interrupts import Interrupted, Stop
from fedstale.experiments.plan import Planned, plan
from fedstale.papers.figure import Cell
from fedstale.runs import store
from fedstale.simulate import Diverged

DIVERGED = "diverged.json"  # in the folder of a run that cannot be finished
PAUSE = 60.0  # seconds from one checkpoint to the next


def waiting(cell: Cell, folder: Path) -> list[Planned]:
    """The runs of a cell that are neither finished nor known to diverge."""
    planned = plan(cell.experiment, folder)
    return [p for p in planned if not p.folder.finished and not (p.folder.path / DIVERGED).exists()]


class Executor(StrEnum):
    processes = "processes"
    ray = "ray"


def compute(
    found: Sequence[Cell],
    folder: Path,
    *,
    jobs: int,
    resume: bool,
    command: str,
    say: Callable[[str], None],
    executor: Executor = Executor.processes,
) -> None:
    """All cells that are not there yet, side by side: `jobs` processes of this machine, or a Ray cluster."""
    todo, start, numbers = [cell for cell in found if waiting(cell, folder)], time.monotonic(), count(1)

    def done() -> None:
        say(_progress(next(numbers), len(todo), start))

    try:
        if executor is Executor.ray:
            _on_cluster(todo, folder, jobs, resume, command, done)
        elif jobs == 1 or len(todo) <= 1:
            for cell in todo:
                _compute(cell, folder, resume, command, parent=None)
                done()
        else:
            _in_processes(todo, jobs, partial(_compute, folder=folder, resume=resume, command=command), done)
    except KeyboardInterrupt:
        raise Interrupted from None


def _in_processes(todo: list[Cell], jobs: int, work: Callable[..., None], done: Callable[[], None]) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        try:
            for one in as_completed([pool.submit(work, cell, parent=os.getpid()) for cell in todo]):
                one.result()
                done()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()  # it saves a checkpoint and ends
            raise


def _on_cluster(
    todo: list[Cell], folder: Path, jobs: int, resume: bool, command: str, done: Callable[[], None]
) -> None:
    """Each cell a task of Ray: on its cluster, or on one of `jobs` CPUs that is started for it here."""
    from fedstale.engines.ray import cluster

    begun = [p.folder.path.name for cell in todo for p in waiting(cell, folder) if p.folder.started]
    require(
        resume or not begun,
        f"{len(begun)} runs were interrupted (first: {begun[0] if begun else ''}); add --resume to go on with them",
    )
    nested = [cell.experiment.engine for cell in todo if cell.experiment.engine == "ray"]
    require(not nested, "a sweep on Ray must train with another engine, got engine 'ray' in its cells")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gpus = int(any(cell.experiment.device.startswith("cuda") for cell in todo))
    work = partial(_compute, folder=folder.resolve(), resume=True, command=command, parent=None)  # or after a death
    ray, leave = cluster.connect(cpus=jobs)
    try:
        cluster.spread(ray, work, todo, gpus, Interrupted, done)
    finally:
        leave()


def _progress(k: int, n: int, start: float) -> str:
    seconds = time.monotonic() - start
    return f"cell {k} of {n}, {seconds:.0f} s so far, about {seconds * (n - k) / k:.0f} s left"


def _compute(cell: Cell, folder: Path, resume: bool, command: str, parent: int | None) -> None:
    todo, e = waiting(cell, folder), cell.experiment
    try:
        with Stop(parent) as stop:
            for _ in execute(e, todo, resume=resume, command=command, pause=PAUSE, stop=stop):
                pass
    except Interrupted:
        if parent:
            os._exit(130)  # or a worker would begin the next cell
        raise
    except Diverged as error:  # the others are finished; these would diverge again
        for p in todo:
            if not p.folder.finished:
                store.write_json(p.folder.path / DIVERGED, {"why": str(error)})

"""Compute the planned cells of a sweep side by side, in processes of this machine or on a Ray cluster."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedstale.core import require
from fedstale.core.system import meanwhile
from fedstale.lab.execute import Stop, ended, execute, require_resumable
from fedstale.lab.plan import Cell, Planned, warmups
from fedstale.lab.runs.status import duration
from fedstale.simulate import Diverged, Interrupted

T = TypeVar("T")
CHECKPOINT_SECONDS = 60.0  # from one checkpoint to the next
REPORT_SECONDS = 10.0  # from one line about the progress to the next


class Executor(StrEnum):
    """Where the cells are computed."""

    processes = "processes"
    ray = "ray"


def waiting(cell: Cell) -> list[Planned]:
    """The runs of a cell that are neither finished nor known to diverge."""
    return [p for p in cell.runs if not ended(p)]


def compute(
    cells: Sequence[Cell],
    *,
    jobs: int,
    resume: bool,
    command: str,
    say: Callable[[str], None],
    executor: Executor = Executor.processes,
    again: bool = False,
    extend: bool = False,
) -> None:
    """Compute all runs that have not ended; `say` gets a line about the progress every few seconds.

    `again` forgets those that have ended first, unless an interrupted recomputation is resumed. With `extend` runs
    go on from shorter ones of the same settings that have ended.
    """
    if again and not resume:
        for p in (p for cell in cells for p in cell.runs):
            with p.folder.locked():
                p.folder.clear()
    todo = [cell for cell in _each_once(cells) if waiting(cell)]
    work = partial(_compute, resume=resume, extend=extend, command=command)
    try:
        with _reporting(todo, say):
            if executor is Executor.ray:
                _on_cluster(todo, jobs, resume, partial(work, resume=True))  # a task that died begins again
            elif jobs == 1 or len(todo) <= 1:
                for cell in todo:
                    work(cell)
            else:
                _in_processes(todo, jobs, work)
    except KeyboardInterrupt:
        raise Interrupted from None


def _each_once(cells: Sequence[Cell]) -> list[Cell]:
    """The cells, each with the runs that no cell before it has: two processes cannot compute the same run."""
    seen, found = set[Path](), list[Cell]()
    for cell in cells:
        found.append(cell._replace(runs=[p for p in cell.runs if p.folder.path not in seen]))
        seen |= {p.folder.path for p in cell.runs}
    return found


def _in_processes(todo: list[Cell], jobs: int, work: Callable[..., None]) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _workers(jobs) as pool:
        try:
            for one in as_completed([pool.submit(work, cell, worker=True) for cell in todo]):
                one.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()  # it saves a checkpoint and ends
            raise


def _workers(jobs: int) -> ProcessPoolExecutor:
    """Forks of a server that has loaded everything once, for all sweeps of this process."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["fedstale.lab.execute", "fedstale.engines.preloaded"])
    return ProcessPoolExecutor(jobs, forks, _begin, (dict(os.environ),))


def in_worker(function: Callable[..., T], *columns: Iterable[Any]) -> list[T]:
    """As `map` does, in another process: one that has loaded torch already, if workers have computed anything."""
    with _workers(1) as pool:
        return list(pool.map(function, *columns))


def _begin(environment: dict[str, str]) -> None:
    """A worker has the environment of the process that asks, not that of an older server."""
    os.environ.clear()
    os.environ.update(environment)


def _on_cluster(todo: list[Cell], jobs: int, resume: bool, work: Callable[..., None]) -> None:
    """Each cell is a Ray task: on the configured cluster, or on one with `jobs` CPUs that is started here."""
    from fedstale.engines.ray import cluster

    if not resume:
        require_resumable([p for cell in todo for p in waiting(cell)])
    nested = [c.experiment.engine for c in todo if c.experiment.engine == "ray"]
    require(not nested, "a sweep on Ray must train with another engine, got engine 'ray' in its cells")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gpus = int(any(c.experiment.device.startswith("cuda") for c in todo))
    ray, leave = cluster.connect(cpus=jobs)
    try:
        cluster.spread(ray, work, todo, gpus, Interrupted, lambda: None)
    finally:
        leave()


def _compute(cell: Cell, resume: bool, extend: bool, command: str, worker: bool = False) -> None:
    todo = waiting(cell)
    try:
        with Stop(worker) as stop:
            for _ in execute(
                cell.experiment, todo, resume=resume, extend=extend, command=command,
                checkpoint_seconds=CHECKPOINT_SECONDS, stop=stop,
            ):  # fmt: skip
                pass
    except Interrupted:
        if worker and stop.asked:
            os._exit(130)  # or a worker would begin the next cell
        raise
    except Diverged:  # the others are finished; the folders of these say that they would diverge again
        pass


def _reporting(cells: Sequence[Cell], say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Says every few seconds how many rounds are done; the store knows, whichever process computes them."""
    runs = [p for cell in cells for p in cell.runs]
    runs += warmups(runs)
    total, start = sum(p.config["rounds"] for p in runs), time.monotonic()
    before = total - rounds_left(runs)
    left, first = runs, (before, 0.0)

    def report() -> None:
        nonlocal left, first
        left = [p for p in left if not ended(p)]
        done, seconds = total - rounds_left(left), time.monotonic() - start
        if first[0] == before < done:
            first = done, seconds  # what comes before the first rounds, loading and compiling, comes once
        say(progress(first, done, total, seconds))

    return meanwhile(report, REPORT_SECONDS)


def rounds_left(runs: Sequence[Planned]) -> int:
    """The rounds of these runs that are not in the store; a diverged run will compute no more."""
    return sum(p.config["rounds"] - p.folder.rounds_recorded() for p in runs if not ended(p))


def progress(first: tuple[int, float], done: int, total: int, seconds: float) -> str:
    """A line about the progress; the time left is estimated from what came after the `first` rounds and seconds."""
    rounds, since = done - first[0], seconds - first[1]
    left = f", about {duration(since * (total - done) / rounds)} left" if rounds > 0 else ""
    return f"{done} of {total} rounds, {duration(seconds)} so far{left}"

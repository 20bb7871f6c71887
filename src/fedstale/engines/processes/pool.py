"""One process per core, each with one thread: for models whose arithmetic is worth a message."""

import contextlib
import multiprocessing
import pickle
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from multiprocessing import connection, reduction, spawn
from multiprocessing.context import SpawnProcess

import numpy as np

from fedstale.core import Array, BadInput, HasDevice, Job, Local, Reply, Task, arguments_checked, require
from fedstale.core.system import cores, large_pages, runs_that_fit
from fedstale.engines.processes.shared import Shared, dump
from fedstale.engines.processes.worker import IMPORTABLE, Board, Brought, Extras, Unit, require_arrays, units, work

ATTEMPTS = 3  # processes that may die over one unit
SHORT = 1 << 14  # bytes of a message that waits in a pipe, so that whoever sends it need not
MOST_RUNS = 4  # in step: enough clients that nobody waits at the end of a round
PICKLABLE = "engine 'pool' must be able to pickle the task and local training: give functions of a module"
NOT_IN_CELLS = (
    "engine 'pool' starts processes that cannot see what is defined in the cells of a notebook: put the model into "
    "a module (a .py file) and import it, or use engine 'serial'"
)
Take = Callable[[Unit, Extras], None]  # what is done with a reply
SPAWN = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads


def _require_guard() -> None:
    """End a worker that runs a script without a guard again, before it starts workers of its own."""
    try:
        spawn._check_not_importing_main()  # type: ignore[attr-defined]
    except RuntimeError:
        sys.exit(1)  # the process that started it says what is wrong


class Worker:
    """A process and its units: the one that it works on, and one that waits for it."""

    def __init__(self, board: Shared, data: Shared, packed: bytes) -> None:
        _require_guard()
        self.ready = False
        self.units: deque[Unit] = deque()
        self.pipe, theirs = SPAWN.Pipe()
        self.process: SpawnProcess = SPAWN.Process(target=work, args=(theirs, board, data, packed), daemon=True)
        with large_pages():
            self.process.start()
        theirs.close()  # so that its death is the end of the pipe

    def give(self, waiting: deque[Unit], ahead: bool = False) -> bool:
        """Send the first of the units; ahead of time only if it is short, for the process does not listen yet.

        Returns whether it is on its way. If the process died, reading its pipe will say so.
        """
        try:
            message = reduction.ForkingPickler.dumps(waiting[0])
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise BadInput(f"{PICKLABLE}, got {error}") from error
        if ahead and len(message) > SHORT:
            return False
        self.units.append(waiting.popleft())
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)
        return True

    def stop(self) -> None:
        """End the process at once."""
        self.pipe.close()
        self.process.kill()  # it has nothing to lose
        self.process.join()
        self.process.close()


class Pool:
    """The reference loop in several processes, bit for bit what Serial gives with one thread.

    Parameters, updates and data are in shared memory; the largest clients go first, to whoever is free.
    A process that dies is replaced and its clients are trained again. Good for convolutions; for small
    models the messages cost more than they save. Starts with the first round, ends with `close`.
    """

    @arguments_checked
    def __init__(self, task: Task, local: Local, workers: int | None = None) -> None:
        require(workers is None or workers >= 1, f"workers must be at least 1, got {workers}")
        place = task.device.type if isinstance(task, HasDevice) else "cpu"
        require(place == "cpu", f"engine 'pool' trains on CPUs, got a task on {place}; use 'serial'")
        require_arrays(task, "pool")
        self.task, self.local, self.workers = task, local, workers or cores()
        self.width = runs_that_fit(task, MOST_RUNS)
        self._board, self._data = Shared(), Shared()
        self._packed = dump((task, local), self._data, PICKLABLE)
        in_cells = vars(sys.modules["__main__"]).get("__file__") is None and b"__main__" in self._packed
        require(not in_cells, NOT_IN_CELLS)
        self._workers: list[Worker] = []
        self._close = weakref.finalize(self, _dismiss, self._workers, self._board, self._data)

    @property
    def running(self) -> bool:
        """Whether its processes have been started."""
        return bool(self._workers)

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        return self._replies(jobs, training=True)

    def losses(self, job: Job) -> Array:
        return self._replies([job], training=False)[0].losses

    def close(self) -> None:
        """End the processes and give the memory back."""
        self._close()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _replies(self, jobs: Sequence[Job], training: bool) -> list[Reply]:
        require(self._close.alive, "this pool is closed; make another one")
        first = np.cumsum([0, *(len(job.clients) for job in jobs)])
        board, brought = Board.of(jobs), Brought(self.task, jobs, training)
        params, updates, drifts, losses = board.open(self._board)
        for k, job in enumerate(jobs):
            params[k] = job.params
            if board.drifts:
                drifts[first[k] : first[k + 1]] = 0 if job.drift is None else job.drift
        found = np.empty((board.rows, board.d if training else 0), np.float32)

        def take(unit: Unit, extras: Extras) -> None:
            for row in unit.rows.tolist() if training else ():
                found[row] = updates[row]  # while the others train
            brought.take(unit, extras)

        try:
            self._run(units(self.task, jobs, self.workers, training), take)
        except BaseException:
            _stop(self._workers)  # or they would go on writing into the next round
            raise
        return brought.replies(found, losses.copy())

    def _run(self, waiting: deque[Unit], take: Take) -> None:
        deaths, ahead = Counter[int](), True
        while waiting or any(worker.units for worker in self._workers):
            while len(self._workers) < self.workers:
                self._workers.append(Worker(self._board, self._data, self._packed))
            for worker in self._workers:
                if waiting and worker.ready and not worker.units:
                    worker.give(waiting)
            for worker in self._workers:  # nobody waits for the next unit; the last ones go to whoever is free
                if ahead and len(waiting) > self.workers and len(worker.units) == 1:
                    ahead = worker.give(waiting, ahead=True)
            ready = connection.wait([worker.pipe for worker in self._workers])
            for worker in [worker for worker in self._workers if worker.pipe in ready]:
                try:
                    _hear(worker, take)
                except (EOFError, ConnectionError):
                    self._workers.remove(worker)
                    waiting.extendleft(_unfinished(worker, deaths))


def _hear(worker: Worker, take: Take) -> None:
    """Read a message: the process is ready, or done with its unit, or has an error to raise."""
    message = worker.pipe.recv()
    if isinstance(message, Exception):
        raise message
    if worker.ready:
        take(worker.units.popleft(), message)
    worker.ready = True


def _unfinished(worker: Worker, deaths: Counter[int]) -> list[Unit]:
    """The units that a dead process leaves undone, the last one first; raises if there is no hope."""
    ready, left = worker.ready, worker.units
    worker.stop()
    require(ready, f"{IMPORTABLE}, got a process that ended at once")
    if left:
        deaths[left[0].number] += 1
        who = left[0].job.clients.tolist()
        if deaths[left[0].number] == ATTEMPTS:
            raise ChildProcessError(f"{ATTEMPTS} processes died training clients {who}: is there enough memory?")
    return [*reversed(left)]


def _stop(workers: list[Worker]) -> None:
    while workers:
        workers.pop().stop()


def _dismiss(workers: list[Worker], *memories: Shared) -> None:
    _stop(workers)
    for memory in memories:
        memory.close()

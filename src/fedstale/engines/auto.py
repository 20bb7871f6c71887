"""The engine that fits a task: its numbers depend on the task alone, its speed also on this machine."""

import math
import time
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from fedstale.core import Array, BadInput, Closes, Engine, Job, Local, Reply, StepsTogether, Task, place_of
from fedstale.core.system import cores
from fedstale.engines.batched.engine import Batched, require_supported
from fedstale.engines.kernels import load
from fedstale.engines.processes.pool import Pool
from fedstale.engines.serial import Serial
from fedstale.tasks.shortcuts import laid_out
from fedstale.tasks.supervised import Supervised

SMALL = 1 << 13  # parameters below which Batched is faster than Serial for any model; measured on CPUs
CLIENTS = 16  # of the round that is tried, at most
TRIAL = 0.3  # seconds that Serial may take for it
REPETITIONS = 5  # the shortest counts
MESSAGE = 5e-4  # seconds that a client takes in a pool besides its training
LOOKS = 3  # rounds of which the shortest counts, when engines that take turns are compared
PATIENCE = 64 * LOOKS  # rounds after a lost turn before the next one, at most
WORTH = 0.05  # seconds of a round from which a pool is worth the seconds that it takes to start


class Auto:
    """Batched where it is fast: for small models, linear ones, MLPs, CNNs and RNNs with numba; else Serial or Pool.

    Serial and Pool are given images channels last if the model has convolutions, and compute of a sequence what the
    model reads, see `tasks/shortcuts.py`.
    Both choices depend on the task and on `Local` alone, so that a run has the same numbers however busy the
    machine is. Serial and Pool have the same bits: a short trial decides which of them begins, and the times of the
    rounds which of them goes on. `name` is the engine that trains now, `note` says why it began. Runs whose
    settings Batched refuses are trained one by one.
    """

    def __init__(self, task: Task, local: Local) -> None:
        self.task, self.local = task, local
        fast, alone = _batched(task, local), laid_out(task) if isinstance(task, Supervised) else task
        self.batched, self._serial = fast[0] if fast else None, Serial(alone, local)
        self.engine, self._name, self.note = fast if fast and _supported(local) else _reference(alone, local)
        self.width = self.engine.width if isinstance(self.engine, StepsTogether) else 1

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        """The replies to all jobs; Serial trains the runs whose settings the chosen engine refuses."""
        engines = [self._engine(job) for job in jobs]
        replies: dict[int, Reply] = {}
        for engine in {id(one): one for one in engines}.values():
            mine = [k for k, one in enumerate(engines) if one is engine]
            replies |= zip(mine, engine.train([jobs[k] for k in mine]), strict=True)
        return [replies[k] for k in range(len(jobs))]

    @property
    def name(self) -> str:
        return self.engine.name if isinstance(self.engine, Turns) else self._name

    def losses(self, job: Job) -> Array:
        return self._engine(job).losses(job)

    def _engine(self, job: Job) -> Engine:
        """Batched wherever it can, so that the bits of a run do not depend on the others."""
        if self.batched and _supported(job.local):
            return self.batched
        return self._serial if isinstance(self.engine, Batched) else self.engine

    def __repr__(self) -> str:
        return f"Auto({self.task!r}, {self.name!r})"

    def close(self) -> None:
        if isinstance(self.engine, Closes):
            self.engine.close()

    def __enter__(self) -> "Auto":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Turns:
    """Pool and Serial, which have the same bits: the one goes on that took less time for a client.

    Pool begins. An engine that takes longer than the other one did gives it a turn of a few rounds: others may have
    come to the machine, or it has less to give than it has cores. They may have left again, so that Serial gives a
    turn from time to time. After each turn that is lost, twice as many rounds pass before the next.
    """

    def __init__(self, task: Task, local: Local, seconds: float) -> None:
        self.task, self.local, self.name = task, local, "pool"
        self.pool, self.serial = Pool(task, local), Serial(task, local)
        self.width = self.pool.width
        self._other = seconds  # of a client in the engine that does not train
        self._recent: deque[float] = deque(maxlen=LOOKS)  # of a client in the one that does,
        self._rounds = 0  # since its first round,
        self._wait: float = LOOKS  # which may be its last after so many,
        self._patience = LOOKS  # and of the winner of the last turn before it gives another one

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        clients, begin = sum(len(job.clients) for job in jobs), time.perf_counter()
        counts = clients > 0 and (self.name == "serial" or self.pool.running)  # not while processes start
        try:
            replies = self._engine.train(jobs)
        except BadInput:  # processes that cannot import what was defined here, such as a notebook's cell
            if self.name == "serial":
                raise
            self.close()
            self.name, self._wait = "serial", math.inf
            return self.serial.train(jobs)
        if counts:
            self.compare((time.perf_counter() - begin) / clients)
        return replies

    def losses(self, job: Job) -> Array:
        return self._engine.losses(job)

    def close(self) -> None:
        self.pool.close()

    @property
    def _engine(self) -> Engine:
        return self.serial if self.name == "serial" else self.pool

    def compare(self, seconds: float) -> None:
        """Note what a client took in a round, and choose the engine of the next one."""
        self._recent.append(seconds)
        self._rounds += 1
        if self._rounds < self._wait:
            return
        mine = min(self._recent)  # what else the machine does only adds to it
        slower, decided = mine > self._other, self._rounds == LOOKS == self._wait
        if decided:
            self._patience = min(2 * self._patience, PATIENCE) if slower else 2 * LOOKS
        if slower or (self.name == "serial" and self._rounds >= self._patience):
            self.name, self._other = "pool" if self.name == "serial" else "serial", mine
            self._rounds, self._wait = 0, self._patience if decided and slower else LOOKS
            self._recent.clear()


Chosen = tuple[Engine, str, str]  # the engine, its name, and why


def _batched(task: Task, local: Local) -> Chosen | None:
    """Batched, if the sizes of the task speak for it and it takes the model."""
    if not isinstance(task, Supervised):
        return None
    compiled = task.dense or (task.stages and load("convolutional")) or (task.gates and load("recurrent"))
    if not (compiled or task.d < SMALL or _on_gpu(task)):
        return None
    with suppress(BadInput), warnings.catch_warnings():  # not every model can be batched, or with speed
        warnings.filterwarnings("error", "There is a performance drop")  # torch's word on LSTMs and the like
        engine = Batched(task, local if _supported(local) else Local(local.lr))
        return engine, "batched", f"engine batched: clients side by side, for a model of {task.d} parameters"
    return None


def _reference(task: Task, local: Local) -> Chosen:
    """Serial, or Pool where a round is long, there are cores for it and the task can be pickled."""
    if cores() > 1 and not _on_gpu(task) and place_of(task) is None:
        clients, seconds = min(task.n, CLIENTS), calibrate(task, local)
        pool = seconds * -(-clients // cores()) / clients + MESSAGE
        note = f"a client takes serial {1000 * seconds:.3g} ms, pool {1000 * pool:.3g} ms, with {cores()} cores"
        if pool < seconds and clients * seconds >= WORTH:
            with suppress(BadInput):
                return Turns(task, local, seconds), "pool", f"engine pool: {note}"
        return Serial(task, local), "serial", f"engine serial: {note}"
    return Serial(task, local), "serial", "engine serial: there is one place to compute"


def calibrate(task: Task, local: Local) -> float:
    """Seconds of a client's round in Serial, with as many clients as the time of the trial allows."""
    serial, params = Serial(task, local), task.init(0)

    def seconds(clients: int) -> float:
        job = Job(params, np.linspace(0, task.n - 1, clients).astype(np.int64), 0, 1, local)
        serial.train([job])  # the first time also loads and allocates
        took: list[float] = []
        while len(took) < REPETITIONS and sum(took) < TRIAL:
            start = time.perf_counter()
            serial.train([job])
            took.append(time.perf_counter() - start)
        return min(took) / clients  # what else the machine does only adds to it

    return seconds(int(np.clip(TRIAL / seconds(1), 1, min(task.n, CLIENTS))))


def _supported(local: Local) -> bool:
    try:
        require_supported(local)
    except BadInput:
        return False
    return True


def _on_gpu(task: Task) -> bool:
    return isinstance(task, Supervised) and task.device.type != "cpu"

"""The engine that is fastest for this task on this machine, found by a short trial."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from fedstale.core import Array, BadInput, Engine, Job, Local, Reply, StepsTogether, Task
from fedstale.engines.batched.engine import Batched, require_supported
from fedstale.engines.machine import cores
from fedstale.engines.processes.pool import Pool
from fedstale.engines.serial import Serial
from fedstale.tasks.supervised import Supervised

CLIENTS = 16  # of the round that is tried, at most
TRIAL = 0.3  # seconds that Serial may take for it
REPETITIONS = 5  # the shortest counts
MESSAGE = 5e-4  # seconds that a client takes in a pool besides its training
WORTH = 0.05  # seconds of a round from which a pool is worth the seconds that it takes to start


class Auto:
    """Serial, Batched or Pool, whichever trains a few clients fastest; `note` says what was measured.

    `name` is the engine that was chosen. The numbers agree within Batched's tolerance, whichever it is. A pool
    is not started for the trial: its time is that of one thread, divided by the cores.
    """

    def __init__(self, task: Task, local: Local) -> None:
        self.task, self.local = task, local
        seconds = calibrate(task, local)
        self.name, self.engine = fastest(seconds, task, local)
        times = ", ".join(f"{name} {1000 * value:.3g} ms" for name, value in seconds.items())
        self.note = f"engine {self.name}: a client takes {times}, with {cores()} cores"
        self.width = self.engine.width if isinstance(self.engine, StepsTogether) else 1

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        """The replies to all jobs; Serial trains the runs whose settings the chosen engine refuses."""
        serial, refused = Serial(self.task, self.local), [self._refuses(job) for job in jobs]
        others = iter(self.engine.train([job for job, no in zip(jobs, refused, strict=True) if not no]))
        return [serial.train([job])[0] if no else next(others) for job, no in zip(jobs, refused, strict=True)]

    def losses(self, job: Job) -> Array:
        return (Serial(self.task, self.local) if self._refuses(job) else self.engine).losses(job)

    def _refuses(self, job: Job) -> bool:
        try:
            require_supported(job.local)
        except BadInput:
            return isinstance(self.engine, Batched)
        return False

    def __repr__(self) -> str:
        return f"Auto({self.task!r}, {self.name!r})"

    def close(self) -> None:
        if isinstance(self.engine, Pool):
            self.engine.close()

    def __enter__(self) -> "Auto":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def calibrate(task: Task, local: Local) -> dict[str, float]:
    """Seconds of a client's round by engine, with as many clients as the time of the trial allows."""
    serial, params = Serial(task, local), task.init(0)

    def seconds(engine: Engine, clients: int) -> float:
        job = Job(params, np.linspace(0, task.n - 1, clients).astype(np.int64), 0, 1, local)
        engine.train([job])  # the first time also loads and allocates
        took: list[float] = []
        while len(took) < REPETITIONS and sum(took) < TRIAL:
            start = time.perf_counter()
            engine.train([job])
            took.append(time.perf_counter() - start)
        return min(took) / clients  # what else the machine does only adds to it

    most = min(task.n, CLIENTS)
    m = int(np.clip(TRIAL / seconds(serial, 1), 1, most))
    took = {"serial": seconds(serial, m)}
    if isinstance(task, Supervised):
        with suppress(BadInput), warnings.catch_warnings():  # not every model can be batched, or with speed
            warnings.filterwarnings("ignore", "There is a performance drop")  # this is what the trial finds out
            took["batched"] = seconds(Batched(task, local), m)
    if cores() > 1 and not _on_gpu(task):
        took["pool"] = took["serial"] * -(-most // cores()) / most + MESSAGE
    return took


def fastest(seconds: Mapping[str, float], task: Task, local: Local) -> tuple[str, Engine]:
    """The engine that took the least time; a pool only where a round is long and the task can be pickled."""
    makers: Mapping[str, Callable[..., Engine]] = {"serial": Serial, "batched": Batched, "pool": Pool}
    long = min(task.n, CLIENTS) * min(value for name, value in seconds.items() if name != "pool") >= WORTH
    for name in sorted(seconds, key=lambda name: seconds[name]):
        with suppress(BadInput):
            if name != "pool" or long:
                return name, makers[name](task, local)
    raise AssertionError("serial takes every task")


def _on_gpu(task: Task) -> bool:
    return isinstance(task, Supervised) and task.device.type != "cpu"

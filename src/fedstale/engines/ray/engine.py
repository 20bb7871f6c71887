"""Actors on a Ray cluster, each with a CPU or a GPU: for a run that is too large for one machine."""

import contextlib
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedstale.core import Array, HasDevice, Job, Local, Reply, Task, require
from fedstale.core.system import runs_that_fit
from fedstale.engines.processes.shared import Pickler, Shared, dump
from fedstale.engines.processes.worker import Brought, Unit, require_arrays, units
from fedstale.engines.ray.actors import Actor, Actors
from fedstale.engines.ray.cluster import connect

MOST_RUNS = 4  # in step: enough clients that nobody waits at the end of a round


class Ray:
    """The reference loop in the actors of a cluster, bit for bit what Serial gives with one thread.

    The data are put once into the object store of each node, the parameters once a round; the largest
    clients go first, to whoever is free. Processes and nodes may die: their clients are trained again.
    One actor per CPU of the cluster, or per GPU if the task is on one, unless `workers` says how many;
    `address` is that of the cluster, see `connect`; after `patience` seconds without a result it gives up.
    """

    def __init__(
        self, task: Task, local: Local, workers: int | None = None, address: str | None = None,
        patience: float = 1800.0,
    ) -> None:  # fmt: skip
        require(workers is None or workers >= 1, f"workers must be at least 1, got {workers}")
        require(patience > 0, f"patience must be above 0, got {patience}")
        require_arrays(task, "ray")
        self.task, self.local = task, local
        self.width = runs_that_fit(task, MOST_RUNS)
        self._ray, leave = connect(address)
        self._actors: list[Any] = []
        self._close = weakref.finalize(self, _dismiss, self._ray, self._actors, leave)
        needs = needed(task)
        self.workers = workers or _places(self._ray, needs)
        maker = self._ray.remote(**needs, max_restarts=-1, max_task_retries=1)(Actor)
        self._actors += [maker.remote(sys.path) for _ in range(self.workers)]
        self._team = Actors(self._ray, self._actors, _put(self._ray, task), patience)

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        return self._replies(jobs, training=True)

    def losses(self, job: Job) -> Array:
        return self._replies([job], training=False)[0].losses

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        self._close()

    def __enter__(self) -> "Ray":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _replies(self, jobs: Sequence[Job], training: bool) -> list[Reply]:
        require(self._close.alive, "this engine is closed; make another one")
        first = np.cumsum([0, *(len(job.clients) for job in jobs)])
        d = self.task.d if training else 0
        updates, losses = np.empty((first[-1], d), np.float32), np.empty(first[-1], np.float32)
        params, brought = [self._ray.put(job.params) for job in jobs], Brought(self.task, jobs, training)

        def inputs(unit: Unit) -> tuple[Any, Array | None]:
            drift = jobs[unit.at].drift
            return params[unit.at], None if drift is None else drift[unit.rows - first[unit.at]]

        def take(unit: Unit, reply: Reply) -> None:
            updates[unit.rows], losses[unit.rows] = reply[:2]
            brought.take(unit, (reply.buffers, reply.states))

        self._team.run(units(self.task, jobs, self.workers, training), inputs, take)
        return brought.replies(updates, losses)


def needed(task: Task) -> dict[str, int]:
    """What an actor asks the cluster for."""
    return {"num_cpus": 1, "num_gpus": int(isinstance(task, HasDevice) and task.device.type == "cuda")}


def _places(ray: Any, needs: dict[str, int]) -> int:
    kind = "GPU" if needs["num_gpus"] else "CPU"
    count = int(ray.cluster_resources().get(kind, 0))
    require(count > 0, f"engine ray needs a node with a {kind}, the cluster has none")
    return count


def _put(ray: Any, task: Task) -> Any:
    """The task, packed; also lambdas and what a script defines, which the nodes could not import."""
    by_value = type("ByValue", (Pickler, ray.cloudpickle.CloudPickler), {})
    with contextlib.closing(Shared()) as memory:
        packed = dump(task, memory, "engine ray must be able to pickle the task", by_value)
        return ray.put((packed, memory.array(0, (memory.size,), "uint8")))


def _dismiss(ray: Any, actors: list[Any], leave: Callable[[], None]) -> None:
    if ray.is_initialized():
        while actors:
            ray.kill(actors.pop())
    leave()

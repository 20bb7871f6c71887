"""Actors of a Ray cluster that train units of work, even if their processes and nodes die."""

import os
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedstale.core import Array, BadInput, Reply, Task
from fedstale.core.system import keep_memory
from fedstale.engines.processes.shared import load
from fedstale.engines.processes.worker import Unit, reply_to
from fedstale.engines.ray.cluster import fetch, result

ATTEMPTS = 3  # that a unit has; in each, Ray tries again on the actor that it has restarted
SOON = 3.0  # seconds without a result after which a unit is also given to another actor,
LATE = 3.0  # but not before so many times what the slowest unit took


class Actor:
    """The task in a process of the cluster, and the reference loop with one thread."""

    def __init__(self, path: list[str]) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded
        keep_memory()
        sys.path += [place for place in path if place not in sys.path]
        self.task: Task | None = None

    def ready(self, data: list[Any]) -> int:
        """Load the task; returns the process id."""
        self._get(data)
        return os.getpid()

    def work(self, data: list[Any], unit: Unit, params: Array, drift: Array | None) -> tuple[Reply, float]:
        """Train the unit; returns its reply and the seconds that it took."""
        task, start = self._get(data), time.monotonic()
        return reply_to(unit, task, params.copy(), drift), time.monotonic() - start

    def _get(self, data: list[Any]) -> Task:
        """With every call, for one that was started again; its arrays stay in the object store."""
        if self.task is None:
            packed, memory = fetch(data)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the data cannot be written to: nobody does
                self.task = load(packed, lambda start, shape, kind: np.ndarray(shape, kind, memory, start))
            if torch := sys.modules.get("torch"):
                torch.set_num_threads(1)
        assert self.task is not None
        return self.task


Inputs = Callable[[Unit], tuple[Any, Array | None]]  # the reference to its parameters, and its drift
Take = Callable[[Unit, Reply], None]


Errand = tuple[int, Unit | None]  # an actor and its unit, or None while it gets ready


class Actors:
    """Some actors and the work that each has; `patience` is how many seconds may pass without a result.

    A unit is a pure function, so any actor may do it, more than once and at any time: a unit that does not
    come back is also given to another actor, and the first result is taken.
    """

    def __init__(self, ray: Any, actors: Sequence[Any], data: Any, patience: float) -> None:
        self.ray, self.actors, self.patience = ray, actors, patience
        self.data = [data]  # in a list, or Ray would unpack it before the actor is there
        self.slowest = 0.0
        self.busy: dict[Any, Errand] = {}  # by what is awaited
        for k in range(len(actors)):
            self._prepare(k)

    def run(self, waiting: deque[Unit], inputs: Inputs, take: Take) -> None:
        """Until all units are done; results of a round that was given up are dropped."""
        todo, deaths, heard = {unit.number: unit for unit in waiting}, Counter[int](), time.monotonic()
        while todo:
            self._give(waiting, todo, inputs)
            pause = min(self.patience, max(SOON, LATE * self.slowest))
            ready, _ = self.ray.wait(list(self.busy), timeout=pause)
            for one in ready:
                _, unit = errand = self.busy.pop(one)
                if unit and todo.get(unit.number) is not unit:
                    continue
                reply = self._hear(one, errand, deaths)
                if unit and reply:
                    take(unit, reply)
                    del todo[unit.number]
                    heard = time.monotonic()
                elif unit:
                    waiting.appendleft(unit)
            if not ready:
                waiting.extend(self._late(waiting, todo))
            if time.monotonic() - heard > self.patience:
                raise TimeoutError(f"no actor of the Ray cluster answered in {self.patience:g} s; see `ray status`")

    def _prepare(self, k: int) -> None:
        """It gets nothing to do until it is there, which may be never if its node was lost."""
        ready = self.actors[k].ready.options(max_task_retries=-1)
        self.busy[ready.remote(self.data)] = k, None

    def _give(self, waiting: deque[Unit], todo: dict[int, Unit], inputs: Inputs) -> None:
        busy = {actor for actor, _ in self.busy.values()}
        for k in [k for k in range(len(self.actors)) if k not in busy]:
            while waiting and waiting[0].number not in todo:
                waiting.popleft()  # it came after all
            if waiting:
                unit = waiting.popleft()
                self.busy[self.actors[k].work.remote(self.data, unit, *inputs(unit))] = k, unit

    def _late(self, waiting: deque[Unit], todo: dict[int, Unit]) -> list[Unit]:
        """What one actor, and nobody else, has or will have: its node may be gone."""
        given = Counter(unit.number for _, unit in self.busy.values() if unit and todo.get(unit.number) is unit)
        queued = {unit.number for unit in waiting}
        return [todo[k] for k, times in given.items() if times == 1 and k not in queued]

    def _hear(self, one: Any, errand: Errand, deaths: Counter[int]) -> Reply | None:
        """The reply to a unit; none if there is nothing but the news of a death, or of an actor that is ready."""
        k, unit = errand
        try:
            answer = result(self.ray, one)
        except self.ray.exceptions.RayError as error:
            if unit is None:  # it cannot be started
                raise _hopeless(error) from error
            deaths[unit.number] += 1
            if deaths[unit.number] == ATTEMPTS:
                died = f"{ATTEMPTS} times the actors died that trained clients {unit.job.clients.tolist()}"
                raise ChildProcessError(f"{died}: is there enough memory?") from error
            self._prepare(k)
            return None
        except Exception as error:
            raise error if unit else _hopeless(error) from error
        if unit is None:
            return None
        reply, seconds = answer
        self.slowest = max(self.slowest, seconds)
        return Reply(*reply)


def _hopeless(error: Exception) -> BadInput:
    last = str(error).strip().split("\n")[-1]
    return BadInput(f"the nodes of the Ray cluster must be able to import fedstale and the task, got {last}")

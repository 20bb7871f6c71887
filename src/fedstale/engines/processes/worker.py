"""One process of a pool: it trains the units that it is sent with Serial and one thread."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from fedstale.core import Array, BadInput, CountsSamples, Floats, Ids, Job, Reply, State, Task, buffered, require
from fedstale.core.abilities import place_of
from fedstale.core.system import keep_memory
from fedstale.engines.processes.shared import Shared, load
from fedstale.engines.serial import answer, cut, work_of

IMPORTABLE = (
    "the processes of engine 'pool' must be able to load the task: keep models in a module, start scripts under "
    "`if __name__ == '__main__':`, or use engine 'serial'"
)
NOTHING: Array = np.zeros(0, np.float32)
SHARES = 16  # units of a round for each process, at least, where there are many: none waits longer than for one
FEW = 4  # clients that one unit may have in any case, while that is less than its share of what is left


class Board(NamedTuple):
    """The layout of inputs and outputs in shared memory: J jobs with R clients in all."""

    jobs: int
    rows: int
    d: int
    drifts: int  # R, or 0 if no job has any

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> "Board":
        rows = sum(len(job.clients) for job in jobs)
        drifts = rows if any(job.drift is not None for job in jobs) else 0
        return cls(len(jobs), rows, len(jobs[0].params) if jobs else 0, drifts)

    def open(self, shared: Shared) -> tuple[Array, Array, Array, Array]:
        """Parameters (J, d), updates (R, d), drifts (R or 0, d), losses (R,)."""
        heights = np.cumsum([0, self.jobs, self.rows, self.drifts]) * self.d
        shared.fit(4 * int(heights[-1] + self.rows))
        a, b, c, d = (4 * int(height) for height in heights)
        params = shared.array(a, (self.jobs, self.d))
        updates, drifts = shared.array(b, (self.rows, self.d)), shared.array(c, (self.drifts, self.d))
        return params, updates, drifts, shared.array(d, (self.rows,))


Extras = tuple[Floats | None, Mapping[int, State] | None]  # buffers (m, b) and states of the clients of a unit


class Unit(NamedTuple):
    """Some clients of one of several jobs."""

    number: int
    board: Board
    at: int  # which of the jobs
    rows: Ids  # (m,) of the board
    job: Job  # that of these clients, without parameters and drift, which come by another way
    training: bool


class Brought:
    """What the replies to several jobs bring besides updates and losses: R rows of buffers, and clients' states."""

    def __init__(self, task: Task, jobs: Sequence[Job], training: bool) -> None:
        keeper, rows = buffered(task), sum(len(job.clients) for job in jobs)
        self.task, self.jobs, self.states = task, jobs, [dict[int, State]() for _ in jobs]
        self.buffers = np.empty((rows, len(keeper.initial_buffers))) if keeper and training else None

    def take(self, unit: Unit, extras: Extras) -> None:
        """What the reply to a unit brings."""
        buffers, states = extras
        if self.buffers is not None:
            self.buffers[unit.rows] = buffers
        self.states[unit.at].update(states or {})

    def replies(self, updates: Array, losses: Array) -> list[Reply]:
        """The replies to the jobs, with what was taken."""
        replies = cut(self.task, self.jobs, updates, losses, self.buffers)
        return [reply._replace(states=kept or None) for reply, kept in zip(replies, self.states, strict=True)]


def require_arrays(task: Task, engine: str) -> None:
    """Refuse a task whose updates stay on its device: other processes send theirs as arrays."""
    stays = place_of(task) is not None
    require(not stays, f"aggregate = 'device' needs engine 'serial', 'batched' or 'auto', got {engine!r}")


def units(task: Task, jobs: Sequence[Job], workers: int, training: bool) -> deque[Unit]:
    """The clients of all jobs, some at a time, the largest first; the last ones alone, so that nobody waits."""
    sizes = task.samples if isinstance(task, CountsSamples) else np.ones(task.n, np.int64)
    board, first = Board.of(jobs), np.cumsum([0, *(len(job.clients) for job in jobs)])
    many = board.rows // (workers * SHARES)
    efforts = [work.samples if work else sizes[job.clients] for job in jobs for work in [work_of(task, job)]]
    left, found = sum(int(effort.sum()) for effort in efforts), list[tuple[int, Unit]]()
    for k, (job, effort) in enumerate(zip(jobs, efforts, strict=True)):
        plain, order, begin = job._replace(params=NOTHING, drift=None), np.argsort(-effort, kind="stable"), 0
        while begin < len(order):
            share = effort[order[begin : begin + FEW]].cumsum() <= left / (1.25 * workers)
            some = order[begin : begin + max(1, many, int(share.sum()))]
            unit = Unit(len(found), board, k, first[k] + some, plain.of(some), training)
            found.append((int(effort[some].sum()), unit))
            left, begin = left - found[-1][0], begin + len(some)
    return deque(unit for _, unit in sorted(found, key=lambda pair: -pair[0]))


def work(pipe: Connection, board: Shared, data: Shared, packed: bytes) -> None:
    """Load the task, report ready with None, then answer every unit with its extras or the error that it raised."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent's to stop
    threading.Thread(target=_follow, daemon=True).start()
    keep_memory()
    try:
        data.fit(data.size)
        task, _ = load(packed, data.array)  # local training comes with each unit
    except Exception as error:
        pipe.send(BadInput(f"{IMPORTABLE}, got {type(error).__name__}: {error}"))
        return
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has closed the pool
        pipe.send(None)
        while True:
            pipe.send(_answer(pipe.recv(), task, board))


def _follow() -> None:
    """End with the parent, even if that was killed in the middle of a long unit."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer(unit: Unit, task: Task, shared: Shared) -> Exception | Extras:
    try:
        params, updates, drifts, losses = unit.board.open(shared)
        reply = reply_to(unit, task, params[unit.at], drifts[unit.rows] if unit.board.drifts else None)
        updates[unit.rows, : reply.updates.shape[1]], losses[unit.rows] = reply[:2]
        return reply.buffers, reply.states
    except Exception as error:
        return error


def reply_to(unit: Unit, task: Task, params: Array, drift: Array | None) -> Reply:
    """Serial's reply to a unit, of which the parameters and the drift come by another way."""
    return answer(task, unit.job._replace(params=params, drift=drift), unit.training)

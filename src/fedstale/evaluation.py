"""The scores of a checkpoint: those of all that belongs to its model, not of the parameters alone."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from fedstale.core import Checkpoint, ScoresClients, Snapshot, Task, buffered, keeps_own, require, shown


def evaluate(task: Task, now: Checkpoint | Snapshot) -> Mapping[str, float]:
    """Name → value of every metric of the model in a checkpoint, or of the one after the round of a snapshot."""
    now = _checkpoint(now)
    if own := keeps_own(task):
        return own.evaluate(now.params, now.buffers, now.clients)
    if keeper := buffered(task):
        return keeper.evaluate(now.params, now.buffers)
    return task.evaluate(now.params)


def per_client(task: Task, now: Checkpoint | Snapshot) -> Mapping[str, npt.NDArray[Any]]:
    """Name → (n,) scores of every client; nothing if the task has none."""
    now = _checkpoint(now)
    if not isinstance(task, ScoresClients):
        return {}
    scores: Callable[..., Mapping[str, npt.NDArray[Any]]] = task.per_client
    if keeps_own(task):
        return scores(now.params, now.buffers, now.clients)
    return scores(now.params, now.buffers) if buffered(task) else scores(now.params)


def _checkpoint(now: Checkpoint | Snapshot) -> Checkpoint:
    ok = isinstance(now, Checkpoint | Snapshot)
    require(ok, f"evaluate takes a task and then a snapshot of fs.simulate or its checkpoint, got {shown(now)}")
    return now.checkpoint if isinstance(now, Snapshot) else now

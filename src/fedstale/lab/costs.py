"""What a rule costs besides its score: memory at the server and at a client, messages, and arithmetic."""

import sys
import time
from operator import attrgetter
from typing import Any

import numpy as np

from fedstale.core.hooks import bound, hooks_of
from fedstale.core.local import Work
from fedstale.core.protocols import Task
from fedstale.core.records import Array, Availability, Ids, Round
from fedstale.lab.runs.codec import pack
from fedstale.lab.spec import Algorithm, Table
from fedstale.privacy.sums import placed
from fedstale.rng import stream

FLOAT = 4  # bytes of a number in a message
REPETITIONS = 5  # of a measurement


def units(rule: Algorithm, task: Task) -> Table:
    """Bytes of state, bytes of the messages of a client, and arithmetic of a client in a round.

    A client that trains sends one vector and is sent one, two if the rule corrects local gradients (c of
    SCAFFOLD). A rule that selects by losses sends the model to everybody who is available, and those that it leaves
    out have computed one loss (`look`; appendix H.A of the thesis). `unheard`: all clients train in every round,
    also those that are not there.
    """
    strategy = placed(rule.strategy)
    n, d, hooks, state = task.n, task.d, hooks_of(strategy), strategy.init(task.n, task.d)
    at_clients = sum(_bytes(attrgetter(name)(state)) for name in hooks.at_clients)
    training, look = _flops(rule, task)
    return {
        "server_bytes": _bytes(state) - at_clients, "client_bytes": at_clients // n, "up": FLOAT * d,
        "down": FLOAT * d * ((hooks.select is None) + (hooks.drift is not None)),
        "asked": FLOAT * d if hooks.select else 0, "flops": training, "look": look if hooks.select else 0,
        "unheard": hooks.unheard is not None,
    }  # fmt: skip


def _bytes(tree: Any) -> int:
    """Bytes of all arrays in a state."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    pack(tree, "", arrays)
    return sum(array.nbytes for array in arrays.values())


def _flops(rule: Algorithm, task: Task) -> tuple[float | None, float | None]:
    """Multiplications and additions of a client that trains, and of a first loss alone, with a torch model."""
    if "torch" not in sys.modules:  # it takes a second to load, and no task without it has such a model
        return None, None
    from fedstale.tasks.flops import sample_flops

    one, local = sample_flops(task), rule.local
    if one is None or local.steps is None:
        return None, None
    return one.gradient * local.steps * local.batch, one.loss * local.batch


def server_ms(rule: Algorithm, task: Task, participants: int) -> float:
    """Milliseconds of the server in a round of so many clients, the least of a few; they depend on the machine."""
    strategy, n, m = bound(rule.strategy, task), task.n, max(1, min(participants, task.n))
    rng, probs, took = stream(0, "server"), np.full(n, m / n, np.float32), []
    updates = rng.standard_normal((m, task.d), np.float32) * np.float32(1e-3)
    state, select = strategy.init(n, task.d), hooks_of(strategy).select
    for t in range(1, REPETITIONS + 1):
        there, losses = np.arange(m), np.ones(m, np.float32)
        start = time.perf_counter()
        if select:
            known = Availability(t, there, losses, task.weights, probs, np.zeros(n, np.float32))
            there, state = select(state, known)
        _, state = strategy.aggregate(state, _round(t, there, updates[there], losses[there], task, probs))
        took.append(1000 * (time.perf_counter() - start))
    return min(took)


def _round(t: int, clients: Ids, updates: Array, losses: Array, task: Task, probs: Array) -> Round:
    """A round in which these updates have arrived, after one local step of rate 1."""
    m = len(clients)
    work = Work(np.ones(m, np.int64), np.ones(m, np.int64), np.ones(m))
    params, arrived = np.zeros(task.d, np.float32), np.ones((m, 1), np.bool_)
    return Round(t, params, clients, updates, arrived, losses, task.weights, probs, work, -updates)

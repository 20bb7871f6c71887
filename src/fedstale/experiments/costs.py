"""What a rule costs besides its score: memory at the server and at a client, messages, and arithmetic."""

from typing import Any

import numpy as np

from fedstale.core import Task, drifts, innermost, kept_at_clients, selects, trains_unheard
from fedstale.experiments.spec import Algorithm, Table
from fedstale.runs.codec import pack

FLOAT = 4  # bytes of a number in a message


def units(rule: Algorithm, task: Task) -> Table:
    """Bytes of state, bytes of the messages of a client, and arithmetic of a client in a round.

    A client that trains sends one vector and is sent one, two if the rule corrects local gradients (c of
    SCAFFOLD). A rule that selects by losses sends the model to everybody who is available. `unheard`: all clients
    train in every round, also those that are not there.
    """
    n, d, strategy = task.n, task.d, rule.strategy
    own, state = kept_at_clients(innermost(strategy)), strategy.init(n, d)
    parts = dict(zip(getattr(state, "_fields", ()), state, strict=False)) if own else {}
    at_clients = sum(_bytes(value) for name, value in parts.items() if name in own)
    return {
        "server_bytes": _bytes(state) - at_clients,
        "client_bytes": at_clients // n,
        "up": FLOAT * d,
        "down": FLOAT * d * ((selects(strategy) is None) + (drifts(strategy) is not None)),
        "asked": FLOAT * d if selects(strategy) else 0,
        "flops": _flops(rule, task),
        "unheard": trains_unheard(strategy) is not None,
    }


def _bytes(tree: Any) -> int:
    """Bytes of all arrays in a state."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    pack(tree, "", arrays)
    return sum(array.nbytes for array in arrays.values())


def _flops(rule: Algorithm, task: Task) -> float | None:
    """Multiplications and additions of a client in a round, where the task has a torch model."""
    from fedstale.tasks.flops import gradient_flops

    per_sample, local = gradient_flops(task), rule.local
    return None if per_sample is None or local.steps is None else per_sample * local.steps * local.batch

"""The memory of a client in a deployment: h_i of the last round that the server has counted, and one that waits.

A client replaces h_i by h_i′ only when the server says, at its next visit, that the round of h_i′ was counted.
Without this commit rule one lost update would make the server's sum of all memories wrong for ever.

It is kept in a file of the folder that the node's configuration names as `own`, so that it survives a kill of the
SuperNode and a restart of the training; without such a folder in the node's state, which Flower keeps in RAM.
"""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context

from fedstale import core
from fedstale.core import BadInput
from fedstale.lab.runs.store import read_tree, write_tree

log = logging.getLogger("flwr")
OWN = "fedstale.own"  # the name of its records in a node's state
EMPTY: core.Array = np.zeros(0, np.float32)


class Held(NamedTuple):
    """What a client holds; h is (d,), or (0,) if it is empty."""

    epoch: int = 0  # how often all memories began anew
    round: int = 0  # the counted round that h is of; 0 if it is empty
    weight: float = 0.0  # with which h is in the server's sum
    h: core.Array = EMPTY
    next_round: int = 0  # a round that the server may have counted since; 0 if there is none
    next_weight: float = 0.0
    next_h: core.Array = EMPTY

    def counted(self, t: int, epoch: int) -> "Held":
        """The memory of round t, which the server has counted last; empty if t is 0 or all began anew."""
        if not t or self.epoch != epoch:
            return Held(epoch)
        if self.next_round == t:
            return Held(epoch, t, self.next_weight, self.next_h)
        if self.round != t:
            raise ValueError(f"the memory of round {t} is not here, only that of round {self.round}")
        return Held(epoch, t, self.weight, self.h)

    def waiting(self, t: int, weight: float, h: core.Array | None) -> "Held":
        """The same with h_i′ of round t, for the time when the server has counted it."""
        return self._replace(next_round=t, next_weight=weight, next_h=EMPTY if h is None else h.astype(np.float32))

    def has(self, t: int, epoch: int) -> bool:
        """Whether it can go on from round t as the last one that was counted."""
        return t == 0 or (self.epoch == epoch and t in (self.round, self.next_round))


def read_memory(context: Context, name: str = "memory") -> Held:
    """What this client holds; nothing if it never held anything, or if that was lost or damaged."""
    if (path := _file(context, name)) is None:
        return _in_state(context)
    try:
        return read_tree(path, Held()) if path.exists() else Held()
    except BadInput as error:
        log.warning("the memory of this client is lost, and begins anew: %s", error)
        return Held()


def write_memory(context: Context, held: Held, name: str = "memory") -> None:
    """Keep it, whole or not at all, before anything of it is sent."""
    if (path := _file(context, name)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_tree(path, held)
        return
    numbers = {key: value for key, value in held._asdict().items() if isinstance(value, int | float)}
    context.state[OWN] = ConfigRecord(numbers)
    context.state[f"{OWN}.rows"] = ArrayRecord({key: Array(getattr(held, key)) for key in ("h", "next_h")})


def _in_state(context: Context) -> Held:
    if OWN not in context.state.config_records:
        return Held()
    rows = context.state.array_records[f"{OWN}.rows"]
    numbers: Any = context.state.config_records[OWN]
    return Held(**numbers, **{key: rows[key].numpy() for key in ("h", "next_h")})


def _file(context: Context, name: str) -> Path | None:
    folder = context.node_config.get("own")
    return None if folder is None else Path(str(folder)) / f"{name}.npz"

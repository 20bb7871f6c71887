"""The memory of a client in a deployment: h_i of the last round that the server has counted, and one that waits.

A client replaces h_i by h_i′ only when the server says, at its next visit, that the round of h_i′ was counted.
Without this commit rule one lost update would make the server's sum of all memories wrong for ever.

It is kept in a file of the folder that the node's configuration names as `own`, so that it survives a kill of the
SuperNode and a restart of the training; without such a folder in the node's state, which Flower keeps in RAM.
"""

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context

from fedstale import core
from fedstale.core import BadInput, Floats, Splits, require
from fedstale.flower.federation.protocol.arrays import Slot, decoded, packed
from fedstale.flower.federation.protocol.link import Body, Order
from fedstale.lab.runs.store import read_tree, write_tree
from fedstale.lab.spec import build
from fedstale.registry import STRATEGIES

log = logging.getLogger("flwr")
OWN = "fedstale.own"  # the name of its records in a node's state
EMPTY: core.Array = np.zeros(0, np.float32)
NONE: Floats = np.zeros(0)


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


def add(
    context: Context, held: Held, rule: Splits, update: core.Array, order: core.Order, t: int, name: str = "memory"
) -> tuple[Any, Floats, Floats]:
    """What a client adds to the server's sums in round t, and its memory before and after, times its weights.

    The next memory waits until the server has counted it.
    """
    h, before, after = held.h if len(held.h) else np.zeros_like(update), NONE, NONE
    said = rule.message(h, update, order)
    if said.memory is not None:
        before, after = held.weight * h.astype(np.float64), order.weight * said.memory.astype(np.float64)
    write_memory(context, held.waiting(t, order.weight, said.memory), name)
    return said, before, after


def shared(context: Context, order: Order, body: Body) -> Body:
    """The reply of a client that keeps its own memory: what it adds is in the place of its update.

    A client whose memory is lost says so by adding nothing: all memories begin anew then.
    """
    assert order.share is not None
    share, name, numbers = order.share, f"memory-{order.run}", NONE
    rule, held = build(json.loads(share.rule), STRATEGIES, "strategy"), read_memory(context, name)
    require(isinstance(rule, Splits), f"the server's rule must be split for a memory at the clients, got {rule}")
    if held.has(share.counted, share.epoch):
        update = decoded(body.update, Slot("update", "float32", order.params.shape, True))
        held = held.counted(share.counted, share.epoch)
        said, before, after = add(context, held, rule, update, share.order, order.t, name)
        numbers = np.concatenate([said.sums, after - before, said.numbers])
    return body._replace(update=packed(np.zeros(0, "<f4")), buffers=packed(numbers.astype("<f8")))

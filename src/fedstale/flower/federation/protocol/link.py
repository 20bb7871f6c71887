"""The network that the round loop needs: who is online, send orders, pull replies, and check them.

Everything in a reply was written by somebody else. Nothing is decoded before its size and header are right,
nothing is ever unpickled, and a number that a reply contains is only ever compared with the expected one.
"""

import math
from collections import namedtuple
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedstale import core
from fedstale.core import Array, Floats, Local
from fedstale.flower.federation.protocol.arrays import Slot, Values, decoded

IDENTITY = (  # what a reply repeats of its order, and why it is refused if that is not the same
    ("run", str, "foreign run"), ("t", int, "wrong round"),
    ("client", int, "foreign client number"), ("token", str, "replayed"),
)  # fmt: skip


class Void(Exception):
    """The round cannot be used: something between server and clients failed, not a client."""


class LinkDown(Void):
    """The server cannot reach its own network: an infrastructure failure, never a client's absence."""


class Fault(StrEnum):
    """Why an arrival has no body."""

    absent = "absent"  # the client has left, or its time is up
    rejected = "rejected"  # the client's code failed
    infrastructure = "infrastructure"  # the network between server and client failed


class Share(NamedTuple):
    """What a client that keeps its own memory is told, to make of its update what it adds to the server's sums."""

    rule: str  # the strategy, as JSON
    order: core.Order
    counted: int  # the round in which the client was counted last; 0 if its memory is empty
    epoch: int  # how often all memories began anew
    size: int  # numbers in the reply


class Order(NamedTuple):
    """Work for one client in one round."""

    node: int
    client: int
    t: int
    token: str  # drawn for this order: a reply to an earlier try of the same round has another
    run: str  # digest of the configuration
    seed: int
    local: Local
    params: Array
    drift: Array | None = None  # (d,) added to every gradient (SCAFFOLD)
    train: bool = True  # False: only the loss is asked for
    buffers: Floats | None = None  # (b,) of a model whose buffers training changes
    evaluate: bool = False  # asks for the scores of the parameters on the client's test samples; not with `train`
    share: Share | None = None  # with memory = "clients": the reply has what is added in the place of the update


class Body(namedtuple("Body", "t client token run loss update buffers", defaults=[None])):
    """The fields of a reply as they arrived: any of them may have any type; an honest one has arrays at its end."""

    __slots__ = ()


class Arrival(NamedTuple):
    """The answer to a message."""

    message: str  # the handle that `send` gave
    node: int | None  # the sender; None if the link itself reports a fault
    body: Body | None
    fault: Fault | None = None
    reason: str = ""


class Clock(Protocol):
    """Time, which a test may have for itself."""

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class Link(Clock, Protocol):
    """A network. Any method may raise LinkDown."""

    def online(self) -> Mapping[int, str]:
        """Node → hash of its key, for all nodes that are online."""
        ...

    def send(self, orders: Sequence[Order], ttl: float) -> Sequence[str | None]:
        """A handle for each order, None where the link did not take it; replies later than `ttl` s are refused."""
        ...

    def pull(self, messages: Sequence[str]) -> Sequence[Arrival]:
        """The answers to these handles that came since the last call."""
        ...

    def forget(self, messages: Sequence[str]) -> None:
        """Nobody waits for answers to these handles any more: the network keeps neither orders nor replies."""
        ...


class Accepted(NamedTuple):
    """The checked content of a reply."""

    update: Array  # (d,), (0,) if only the loss was asked for
    loss: float
    buffers: Floats | None = None  # (b,) if the order has any; with a share, what is added: (0,) if memory is lost


def check(body: Body, order: Order, row: Array) -> Accepted:
    """Check the reply to an order and copy its update to `row` (d,); raises ValueError, with the reason."""
    for name, kind, reason in IDENTITY:
        stated = getattr(body, name)
        if type(stated) is not kind or stated != getattr(order, name):
            raise ValueError(reason)
    loss = body.loss
    if type(loss) is not float or not math.isfinite(loss) or abs(loss) > float(np.finfo(np.float32).max):
        raise ValueError("the loss is not a finite number")
    row[:] = _finite(body.update, Slot("update", "float32", row.shape, True))
    asked = order.train and (order.share is not None or order.buffers is not None)
    if (body.buffers is None) == asked:
        raise ValueError("no buffers" if asked else "buffers were not asked for")
    return Accepted(row, loss, _wide(body.buffers, order) if asked else None)


def _wide(told: Any, order: Order) -> Floats:
    """The buffers, or what a client with a memory of its own adds: nothing if its memory is lost."""
    if order.share is None:
        shape = () if order.buffers is None else order.buffers.shape
        return _finite(told, Slot("buffers", "float64", shape, False))
    try:
        return _finite(told, Slot("buffers", "float64", (0,), False))
    except ValueError:
        return _finite(told, Slot("buffers", "float64", (order.share.size,), False))


def _finite(array: Any, slot: Slot) -> Values:
    values = decoded(array, slot)
    if not np.isfinite(values).all():
        raise ValueError(f"array {slot.name!r} is not finite")
    return values

"""The checks that a reply must pass before it touches any state.

Everything in a reply was written by somebody else. Nothing is decoded before its size and header are right,
nothing is ever unpickled, and a number that a reply contains is only ever compared with the expected one.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, Floats
from fedstale.flower.federation.protocol.arrays import Slot, Values, decoded
from fedstale.flower.federation.protocol.link import Body, Order

IDENTITY = (  # what a reply repeats of its order, and why it is refused if that is not the same
    ("run", str, "foreign run"), ("t", int, "wrong round"),
    ("client", int, "foreign client number"), ("token", str, "replayed"),
)  # fmt: skip


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

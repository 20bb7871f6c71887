"""The checks that a reply must pass before it touches any state.

Everything in a reply was written by somebody else. Nothing is decoded before its size and header are right,
nothing is ever unpickled, and a number that a reply contains is only ever compared with the expected one.
"""

import math
from typing import NamedTuple

import numpy as np

from fedstale.core import Array, Floats
from fedstale.flower.federation.protocol.link import Body, Order, Packed

STYPE = "fedstale/f4"  # raw little-endian float32, without a header of its own
WIDE = "fedstale/f8"  # the same of float64, for buffers
IDENTITY = (  # what a reply repeats of its order, and why it is refused if that is not the same
    ("run", str, "foreign run"), ("t", int, "wrong round"),
    ("client", int, "foreign client number"), ("token", str, "replayed"),
)  # fmt: skip


class Rejected(Exception):
    """A reply that cannot be used; the text is the reason, which is logged and counted."""


class Accepted(NamedTuple):
    """The checked content of a reply."""

    update: Array  # (d,), (0,) if only the loss was asked for
    loss: float
    buffers: Floats | None = None  # (b,) if the order has any


def check(body: Body, order: Order, row: Array) -> Accepted:
    """Check the reply to an order and copy its update to `row` (d,); raises Rejected."""
    for name, kind, reason in IDENTITY:
        stated = getattr(body, name)
        if type(stated) is not kind or stated != getattr(order, name):
            raise Rejected(reason)
    _header(Packed(body.dtype, body.shape, body.stype, body.data), len(row), ("float32", STYPE, 4))
    loss = body.loss
    if type(loss) is not float or not math.isfinite(loss) or abs(loss) > float(np.finfo(np.float32).max):
        raise Rejected("the loss is not a finite number")
    row[:] = np.frombuffer(body.data, "<f4")
    if not np.isfinite(row).all():
        raise Rejected("the update is not finite")
    return Accepted(row, loss, _buffers(body.buffers, order.buffers if order.train else None))


def _buffers(packed: Packed | None, sent: Floats | None) -> Floats | None:
    """The buffers in a reply, which has them if the order has."""
    if (packed is None) != (sent is None):
        raise Rejected("no buffers" if packed is None else "buffers were not asked for")
    if packed is None or sent is None:
        return None
    if type(packed) is not Packed:
        raise Rejected("wrong type")
    _header(packed, len(sent), ("float64", WIDE, 8))
    buffers = np.frombuffer(packed.data, "<f8").astype(np.float64)
    if not np.isfinite(buffers).all():
        raise Rejected("the buffers are not finite")
    return buffers


def _header(packed: Packed, length: int, expected: tuple[str, str, int]) -> None:
    (dtype, stype, width), shape = expected, packed.shape
    if type(packed.stype) is not str or packed.stype != stype:
        raise Rejected("wrong type")
    if type(packed.dtype) is not str or packed.dtype != dtype:
        raise Rejected("wrong type")
    if type(shape) not in (tuple, list) or len(shape) != 1 or type(shape[0]) is not int or shape[0] != length:
        raise Rejected("wrong shape")
    if type(packed.data) is not bytes or len(packed.data) != width * length:
        raise Rejected("wrong size")

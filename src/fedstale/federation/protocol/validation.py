"""The checks that a reply must pass before it touches any state.

Everything in a reply was written by somebody else. Nothing is decoded before its size and header are right,
nothing is ever unpickled, and a number that a reply contains is only ever compared with the expected one.
"""

import math
from typing import NamedTuple

import numpy as np

from fedstale.core import Array, Floats
from fedstale.federation.protocol.link import Body, Order

STYPE = "fedstale/f4"  # raw little-endian float32, without a header of its own
REMEMBERED = 256  # norms that the median is taken over
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
    norm: float


def check(body: Body, order: Order, row: Array) -> Accepted:
    """Check the reply to an order and copy its update to `row` (d,); raises Rejected."""
    for name, kind, reason in IDENTITY:
        stated = getattr(body, name)
        if type(stated) is not kind or stated != getattr(order, name):
            raise Rejected(reason)
    _header(body, len(row))
    loss = body.loss
    if type(loss) is not float or not math.isfinite(loss) or abs(loss) > float(np.finfo(np.float32).max):
        raise Rejected("the loss is not a finite number")
    row[:] = np.frombuffer(body.data, "<f4")
    if not np.isfinite(row).all():
        raise Rejected("the update is not finite")
    return Accepted(row, loss, float(np.linalg.norm(row.astype(np.float64))))


def _header(body: Body, d: int) -> None:
    if type(body.stype) is not str or body.stype != STYPE or type(body.dtype) is not str or body.dtype != "float32":
        raise Rejected("wrong type")
    shape = body.shape
    if type(shape) not in (tuple, list) or len(shape) != 1 or type(shape[0]) is not int or shape[0] != d:
        raise Rejected("wrong shape")
    if type(body.data) is not bytes or len(body.data) != 4 * d:
        raise Rejected("wrong size")


def largest_norm(past: Floats, fresh: list[float], factor: float) -> float:
    """The largest norm that is accepted: `factor` times the median of the past and of this round's norms."""
    norms = np.concatenate([past, fresh])
    return float(factor * np.median(norms)) if factor and len(norms) else math.inf


def recent_norms(past: Floats, fresh: list[float]) -> Floats:
    """The norms that the next round's median is taken over."""
    return np.concatenate([past, fresh])[-REMEMBERED:]

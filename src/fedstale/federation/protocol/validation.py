"""The checks that a reply must pass before it touches any state.

Everything in a reply was written by somebody else. Nothing is decoded before its size and header are right,
nothing is ever unpickled, and a number that a reply contains is only ever compared with the expected one.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, Floats

STYPE = "fedstale/f4"  # raw little-endian float32, without a header of its own
REMEMBERED = 256  # norms that the median is taken over


class Rejected(Exception):
    """A reply that cannot be used; the text is the reason, which is logged and counted."""


class Body(NamedTuple):
    """The fields of a reply as they arrived: any of them may have any type."""

    t: Any = None
    client: Any = None
    token: Any = None
    run: Any = None
    loss: Any = None
    dtype: Any = None
    shape: Any = None
    stype: Any = None
    data: Any = None


class Expected(NamedTuple):
    """The identity that a reply to one order must state."""

    t: int
    client: int
    token: str  # drawn for this order: a reply to an earlier try of the same round has another
    run: str  # digest of the configuration


class Accepted(NamedTuple):
    """The checked content of a reply."""

    update: Array  # (d,), (0,) if only the loss was asked for
    loss: float
    norm: float


def check(body: Body, e: Expected, row: Array) -> Accepted:
    """Check a reply and copy its update to `row` (d,); raises Rejected."""
    _identity(body, e)
    _header(body, len(row))
    loss = body.loss
    if type(loss) is not float or not math.isfinite(loss) or abs(loss) > float(np.finfo(np.float32).max):
        raise Rejected("the loss is not a finite number")
    row[:] = np.frombuffer(body.data, "<f4")
    if not np.isfinite(row).all():
        raise Rejected("the update is not finite")
    return Accepted(row, loss, float(np.linalg.norm(row.astype(np.float64))))


def _identity(body: Body, e: Expected) -> None:
    if type(body.run) is not str or body.run != e.run:
        raise Rejected("foreign run")
    if type(body.t) is not int or body.t != e.t:
        raise Rejected("wrong round")
    if type(body.client) is not int or body.client != e.client:
        raise Rejected("foreign client number")
    if type(body.token) is not str or body.token != e.token:
        raise Rejected("replayed")


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

"""The split of a rule: what a client makes of its update, and what the server makes of the sum of it.

A rule that is linear in updates and memories needs no single update: sums over the clients of a round are enough.
Its clients keep their memories. Secure aggregation reveals these sums and nothing else.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedstale.core.local import Floats
from fedstale.core.records import Array, Round, State

__all__ = ["Message", "Observes", "Order", "Splits", "Total", "orders"]

NOTHING: Floats = np.zeros(0)


class Order(NamedTuple):
    """What the server tells a client of a round; everybody may know it."""

    weight: float  # a_i, up to a factor that is the same for all
    inverse: float = 1.0  # 1 / p_i, as the rule takes it
    beta: float = 0.0
    visits: int = 0  # updates of this client that were counted before
    centre: Array | None = None  # (d,)


class Message(NamedTuple):
    """What a client adds to the sums of a round, and what it keeps."""

    sums: Floats = NOTHING  # (k d,) proportional to its weight
    memory: Array | None = None  # (d,) its next memory h_i′; None if the rule has none
    numbers: Floats = NOTHING  # (j,) proportional to the square of its weight


class Total(NamedTuple):
    """What the server knows of a round, in units of a_i."""

    sums: Floats
    stale: Floats  # (d,) Σ_i a_i h_i over all clients, before the round
    change: Floats  # (d,) Σ_S (a_i h_i′ - a_i h_i)
    numbers: Floats


@runtime_checkable
class Splits(Protocol):
    """A strategy whose `aggregate` is `close` of the sum of the clients' messages."""

    def opened(self, n: int, d: int) -> State:
        """The server's state before round 1, without any client's memory."""

    def orders(self, state: State, r: Round) -> list[Order]:
        """What each client of the round is told; the round has no updates yet."""

    def message(self, h: Array, update: Array, order: Order) -> Message:
        """What a client with memory h, zero before its first update, makes of its update; it changes neither."""

    def close(self, state: State, total: Total, r: Round) -> tuple[Array, State]:
        """The step and the next state; the round names the clients and has no updates."""


@runtime_checkable
class Observes(Protocol):
    """A strategy around another one that only looks on: its steps are those of the other."""

    @property
    def observes(self) -> bool: ...


def orders(r: Round, *, beta: float = 0.0, inverse: bool = False) -> list[Order]:
    """Orders of a rule that needs weights, perhaps 1 / p_i, and a β that is the same for all."""
    a = r.weights[r.clients].astype(np.float64)
    ratio = 1 / r.probs[r.clients].astype(np.float64) if inverse and (r.inverse() >= 0).all() else np.ones(len(a))
    return [Order(weight, share, beta) for weight, share in zip(a.tolist(), ratio.tolist(), strict=True)]

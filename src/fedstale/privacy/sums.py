"""A rule whose server sees sums only, and whose clients keep their memories: any rule that is split.

With a ring the sums are those of secure aggregation, rounded and cut as in a deployment.
"""

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import numpy as np

from fedstale.core.hooks import Hooks, hooks_of, rebuilt
from fedstale.core.parts import part, require
from fedstale.core.protocols import Strategy
from fedstale.core.records import Array, Floats, Ids, Round, State
from fedstale.core.split import Observes, Order, Splits, Total
from fedstale.memory.memory import KeepsMemory, Memory, at_clients
from fedstale.privacy.ring import Ring

NOTHING: Floats = np.zeros(0)
FEWEST = 3  # of two clients, each would know the other's update


class Sums(NamedTuple):
    """The state: what the server has, O(d), and what the clients have."""

    inner: State  # the rule's, without memories
    total: Floats  # (d,) Σ_i v_i h_i
    unit: float  # v_i = a_i · unit, which is about 1
    counted: Ids  # (n,) the last round in which a client was counted, 0 if its memory is empty
    mean: float = 0.0  # in a deployment, the weight that counts as v = 1
    epoch: int = 0  # how often all memories began anew
    secure: bool = False  # whether it is added in a ring
    clipped: int = 0  # entries of the last round that were beyond the range of the ring
    memory: Memory | None = None  # of the clients; None in a deployment


class Added(NamedTuple):
    """What the clients of a round have added, in units of v_i."""

    sums: Floats
    change: Floats  # (d,) of the memories; (0,) if there are none
    numbers: Floats
    clipped: int = 0


@part
class Summed:
    """A rule that is split, with its memory at the clients; with a `ring`, as secure aggregation adds.

    `deployed`: the clients are somewhere else, and `close` is given what they have added.
    """

    strategy: Strategy
    ring: Ring | None = None
    deployed: bool = False
    at_clients: ClassVar[tuple[str, ...]] = ("memory",)

    def __post_init__(self) -> None:
        way = "take fedavg, unbiased, fedstale, fedvarp, mifa or auto"
        ok = isinstance(self.strategy, Splits)
        require(ok, f"{self.strategy} needs every update at the server, not sums of them alone; {way}")

    def __repr__(self) -> str:
        return repr(self.strategy)

    @property
    def rule(self) -> Splits:
        """The strategy, whose methods for clients are needed."""
        assert isinstance(self.strategy, Splits)
        return self.strategy

    def hooks(self) -> Hooks:
        return hooks_of(self.strategy)._replace(least=FEWEST if self.ring else 0)

    def init(self, n: int, d: int) -> Sums:
        start = Sums(
            self.rule.opened(n, d), np.zeros(d), float(n), np.zeros(n, np.int64), secure=self.ring is not None
        )
        if self.deployed or not isinstance(self.strategy, KeepsMemory):
            return start
        return start._replace(memory=Memory.zeros(n, d, self.strategy.memory))

    def aggregate(self, state: Sums, r: Round) -> tuple[Array, Sums]:
        whole = "sums need whole updates, got a round in which a part of an update was lost"
        require(bool(r.arrived.all()), whole)
        return self.close(state, self._added(state, r), r)

    def orders(self, state: Sums, r: Round) -> list[Order]:
        """What the clients of a round are told."""
        return [order._replace(weight=order.weight * state.unit) for order in self.rule.orders(state.inner, r)]

    def close(self, state: Sums, added: Added, r: Round) -> tuple[Array, Sums]:
        """The step and the state after a round in which the clients have added this."""
        u, change = state.unit, added.change if len(added.change) else np.zeros_like(state.total)
        total = Total(added.sums / u, state.total / u, change / u, added.numbers / u**2)
        m = len(r.clients)
        bare = r._replace(updates=np.zeros((m, 0), np.float32), arrived=np.ones((m, 1), np.bool_))
        step, inner = self.rule.close(state.inner, total, bare)
        state.counted[r.clients] = r.t
        return step, state._replace(inner=inner, total=state.total + change, clipped=added.clipped)

    def forget(self, state: Sums, clients: Ids) -> Sums:
        """All memories begin anew: what one client has in the sum, nobody else knows and can take out of it."""
        forget, everybody = hooks_of(self.strategy).forget, np.arange(len(state.counted))
        inner = forget(state.inner, everybody) if forget and state.inner is not None else state.inner
        if state.memory is not None:
            state.memory.forget(everybody)
        nothing, nobody = np.zeros_like(state.total), np.zeros_like(state.counted)
        return state._replace(inner=inner, total=nothing, counted=nobody, epoch=state.epoch + 1)

    def nothing(self, d: int) -> Added:
        """What no clients add."""
        zeros = np.zeros(d, np.float32)
        message = self.rule.message(zeros, zeros, Order(0.0, centre=zeros))
        size = 0 if message.memory is None else d
        return Added(np.zeros_like(message.sums), np.zeros(size), np.zeros_like(message.numbers))

    def size(self, d: int) -> int:
        """How many numbers a client adds."""
        return sum(len(x) for x in self.nothing(d)[:3])

    def gathered(self, rows: Iterable[Floats], d: int) -> Added:
        """The sum of what clients have added, each (size,)."""
        sums, change, *_ = self.nothing(d)
        total = np.zeros(self.size(d))
        for row in rows:
            total = total + row
        first, middle, last = np.split(total, [len(sums), len(sums) + len(change)])
        return Added(first, middle, last)

    def _added(self, state: Sums, r: Round) -> Added:
        """The sum of the messages of a simulated round, whose clients change their memories."""
        total, codes = self.nothing(len(state.total)), np.zeros(1, np.uint32)
        for i, update, order in zip(r.clients.tolist(), r.updates, self.orders(state, r), strict=True):
            sums, numbers, before, after = self._said(state.memory, i, r.t, update, order)
            if self.ring:
                codes = codes + self.ring.encode(sums, before, after, numbers)
            else:
                total = Added(total.sums + sums, total.change + (after - before), total.numbers + numbers)
        if self.ring is None or len(r.clients) == 0:
            return total
        return Added(*self.ring.decode(codes, len(total.sums), len(total.change)))

    def _said(
        self, memory: Memory | None, i: int, t: int, update: Array, order: Order
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """What simulated client i says: sums, numbers, and its memory times its weight before and after."""
        h = np.zeros_like(update) if memory is None else memory.row(i)
        sums, new, numbers = self.rule.message(h, update, order)
        if memory is None or new is None:
            return sums, numbers, NOTHING, NOTHING
        memory.write(i, new, np.ones(1, np.bool_), t)
        before, after = (order.weight * x.astype(np.float64) for x in (h, memory.row(i)))
        return sums, numbers, before, after


@part
class Received:
    """A rule that closes a round with what its clients have added."""

    rule: Summed
    added: Added

    def hooks(self) -> Hooks:
        return self.rule.hooks()._replace(least=0)

    def init(self, n: int, d: int) -> Sums:
        return self.rule.init(n, d)

    def aggregate(self, state: Sums, r: Round) -> tuple[Array, Sums]:
        return self.rule.close(state, self.added, r)


def placed(rule: Strategy, ring: Ring | None = None) -> Strategy:
    """The rule with its memory at the clients, if its settings say so; with a ring, what is added is rounded."""
    if ring is None and not at_clients(rule):
        return rule
    return rebuilt(rule, lambda layer: layer if isinstance(layer, Observes | Summed) else Summed(layer, ring))

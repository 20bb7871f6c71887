"""One exchange of a round: orders go out, replies come in, and each is checked before it counts."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set, Sized
from typing import NamedTuple

import numpy as np

from fedstale.core import Array
from fedstale.flower.federation.protocol.link import Accepted, Arrival, Clock, Fault, Link, Order, Void, check
from fedstale.flower.federation.settings import RoundSection
from fedstale.participation.clock import Pace

SHORTEST, SHARE = 0.2, 0.1  # between two pulls: seconds at least, and the share of the time since the orders
SMALL, MANY = 16 << 20, 100  # bytes of messages that are few, and how many of them are sent or pulled at once


class Outcome(NamedTuple):
    """The good replies, and the rejected ones with their reasons; all other clients were absent."""

    accepted: dict[int, Accepted]
    rejected: dict[int, str]

    def without(self, lies: Mapping[int, str]) -> "Outcome":
        """The outcome with these clients rejected, too: client → why."""
        return Outcome({i: a for i, a in self.accepted.items() if i not in lies}, {**self.rejected, **lies})


Buffer = Mapping[int, Array]
Row = Callable[[int], Array]  # client → (d,) where its update goes
Turn = Callable[[Set[int]], Sequence[tuple[int, bool]]]


def _buffer(orders: Sequence[Order]) -> Buffer:
    """A row for the update of each client, by ascending client number, all in one array."""
    d = max((len(o.params) if o.train and o.share is None else int(o.evaluate) for o in orders), default=0)
    rows = np.empty((len(orders), d), np.float32)
    return {client: rows[k] for k, client in enumerate(sorted(o.client for o in orders))}


def take_turns(pace: Pace, turn: Turn, flying: Sized, clock: Clock, pauses: tuple[float, float]) -> None:
    """Keep clients at work until a step is due by the pace; one that fails is not asked again before the next.

    `turn(failed)` sends work to clients that are idle and have not failed, and returns whose work has ended since
    the last turn, each with whether it brought an update. `flying` are those at work, `pauses` the shortest and the
    longest between two turns.
    """
    rule, opened, received, failed = pace.rule(1), clock.now(), 0, set[int]()
    heard = opened
    while True:
        came, now = turn(failed), clock.now()
        received += sum(good for _, good in came)
        failed |= {client for client, good in came if not good}
        stuck = bool(failed) and not len(flying)
        if rule.arrivals is not None and (stuck or received >= rule.arrivals):
            return
        if rule.seconds is not None and now - opened >= rule.seconds:
            return
        heard = now if came else heard
        if not came:
            clock.sleep(min(max(SHARE * (now - heard), pauses[0]), pauses[1]))


class Exchange:
    """Sends orders, and pulls replies in small groups until all clients have answered, have left, or time is up."""

    def __init__(self, link: Link, settings: RoundSection) -> None:
        self.link, self.settings = link, settings
        self.late: set[int] = set()  # clients that were still waited for when the last exchange ended
        self.flying: dict[str, Order] = {}  # with a pace: orders at work, from step to step
        self.until: dict[str, float] = {}  # when each of them is given up

    def __call__(self, orders: Sequence[Order], enough: int | None = None) -> Outcome:
        """What comes of the orders, or of the first `enough` good replies; raises Void if the link fails."""
        waiting = self._send(orders)
        sent, answered = list(waiting), dict[str, Order]()
        try:
            return self._collect(waiting, answered, _buffer(orders), len(orders) if enough is None else enough)
        finally:
            self.late = {order.client for order in waiting.values()}
            self.link.forget([handle for handle in sent if handle not in answered])

    def _collect(
        self, waiting: dict[str, Order], answered: dict[str, Order], buffer: Buffer, enough: int
    ) -> Outcome:
        outcome, until = Outcome({}, {}), self.link.now() + self.settings.deadline
        sent = looked = self.link.now()
        while waiting:
            came, handles = 0, sorted(waiting, key=lambda handle: waiting[handle].token)  # no client is favoured
            few = len(buffer) > enough  # then not many more than enough are pulled
            group = self.settings.group if few else self._group(waiting.values())
            for k in range(0, len(handles), group):
                if len(outcome.accepted) >= enough:
                    break
                for arrival in self.link.pull(handles[k : k + group]):
                    came += self._take(arrival, waiting, answered, outcome, buffer.__getitem__)
            now = self.link.now()
            if now >= until or not waiting or len(outcome.accepted) >= enough:
                break
            if now - looked >= self.settings.poll:
                self._drop_offline(waiting)
                looked = now
            if not came:  # a reply that came quickly is seen quickly
                pause = max(SHARE * (now - sent), SHORTEST)
                self.link.sleep(min(pause, self.settings.poll, until - now))
        return outcome

    def _send(self, orders: Sequence[Order]) -> dict[str, Order]:
        waiting: dict[str, Order] = {}
        size = self._group(orders)
        for k in range(0, len(orders), size):
            group = orders[k : k + size]
            handles = self.link.send(group, self.settings.deadline)
            if len(handles) != len(group) or None in handles:
                raise Void("the link did not take every order")
            waiting |= {str(handle): order for handle, order in zip(handles, group, strict=True)}
        return waiting

    def _group(self, orders: Collection[Order]) -> int:
        """How many messages are sent or pulled at once: few, so that the memory holds them, or many small ones."""
        largest = max((order.params.nbytes for order in orders), default=0)
        return max(self.settings.group, min(SMALL // max(largest, 1), MANY))

    def _take(
        self, a: Arrival, waiting: dict[str, Order], answered: dict[str, Order], out: Outcome, row: Row
    ) -> int:
        """Check an arrival, and copy its update to its client's row; returns 1 if it settles an order, else 0."""
        if a.message in answered:  # the first answer stands
            out.rejected.setdefault(answered[a.message].client, "duplicate")
            return 0
        if a.message not in waiting:  # nobody asked for it
            return 0
        order = answered[a.message] = waiting.pop(a.message)
        if a.fault is Fault.infrastructure:
            raise Void(a.reason or "the link lost a message")
        if a.fault is not Fault.absent:
            try:
                out.accepted[order.client] = _accepted(a, order, row(order.client))
            except ValueError as reason:
                out.rejected[order.client] = str(reason)
        return 1

    def step(self, ask: Callable[[Set[int]], Sequence[Order]], pace: Pace) -> tuple[Outcome, dict[int, Order]]:
        """Keep clients at work until a step is due by the pace; what is late stays for a later one.

        `ask(busy)` makes orders for clients that are not busy. Returns what came and, by client, the orders that
        have ended: answered, given up, or failed. Of two updates of a client the newer counts. Raises Void if the
        link fails; then nothing is in flight any more.
        """
        outcome, ended = Outcome({}, {}), dict[int, Order]()

        def turn(failed: Set[int]) -> list[tuple[int, bool]]:
            new = self._send(ask({order.client for order in self.flying.values()} | failed))
            self.flying |= new
            self.until |= dict.fromkeys(new, self.link.now() + self.settings.deadline)
            return self._land(outcome, ended)

        try:
            take_turns(pace, turn, self.flying, self.link, (SHORTEST, self.settings.poll))
        except Void:
            self.give_up(self.flying)
            raise
        return outcome, ended

    def _land(self, outcome: Outcome, ended: dict[int, Order]) -> list[tuple[int, bool]]:
        """The clients whose orders have ended since the last look, and whether each brought an update."""
        before, handles, answered = dict(self.flying), [*self.flying], dict[str, Order]()
        new, d = Outcome({}, {}), max((len(order.params) for order in before.values()), default=0)
        group = self._group(before.values())
        for k in range(0, len(handles), group):
            for arrival in self.link.pull(handles[k : k + group]):
                self._take(arrival, self.flying, answered, new, lambda _: np.empty(d, np.float32))
        self.give_up(h for h in [*self.flying] if self.link.now() >= self.until[h])
        done = [(before[h], before[h].client in new.accepted) for h in handles if h not in self.flying]
        ended |= {order.client: order for order, good in done if good or order.client not in ended}
        outcome.accepted.update(new.accepted)
        outcome.rejected.update(new.rejected)
        return [(order.client, good) for order, good in done]

    def give_up(self, handles: Iterable[str]) -> None:
        """Do not wait for these orders any more."""
        gone = [*handles]
        for handle in gone:
            self.flying.pop(handle, None)
            self.until.pop(handle, None)
        self.link.forget(gone)

    def _drop_offline(self, waiting: dict[str, Order]) -> None:
        """Do not wait for clients that have left the network."""
        online = self.link.online()
        for handle in [h for h, order in waiting.items() if order.node not in online]:
            del waiting[handle]


def _accepted(a: Arrival, order: Order, row: Array) -> Accepted:
    """The checked reply in an arrival; raises ValueError, with the reason, if there is none."""
    if a.fault is Fault.rejected:
        raise ValueError(a.reason or "the client failed")
    if a.node != order.node:
        raise ValueError("wrong sender")
    if a.body is None:
        raise ValueError("malformed")
    return check(a.body, order, row)

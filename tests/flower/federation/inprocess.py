"""A federation without a network, for tests and trials: clients in this process, and a simulated clock."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from itertools import zip_longest

import numpy as np

from fedstale.core import Task
from fedstale.flower.federation.client.training import OneClient, score_on_order, train_on_order
from fedstale.flower.federation.protocol.arrays import packed
from fedstale.flower.federation.protocol.link import Arrival, Body, Order
from fedstale.flower.federation.state.roster import Member, Roster, key_hash

Answer = Callable[[Order, Body], Sequence[Arrival] | None]  # made from the honest reply; None stands for it
NODES = 1000  # client i is node 1000 + i


def key_of(client: int) -> str:
    """What stands for the hash of a client's key."""
    return key_hash(f"client {client}".encode())


def roster_of(clients: Iterable[int], version: int = 1, weights: Iterable[float] = ()) -> Roster:
    """A roster of in-process clients; without weights, all count the same."""
    pairs = zip_longest(sorted(clients), weights, fillvalue=1.0)
    members = tuple(Member(int(i), key_of(int(i)), weight=weight) for i, weight in pairs)
    return Roster(version, members[-1].id + 1, members)


def scaled(body: Body, factor: float) -> Body:
    """A reply whose update is a multiple of the honest one."""
    return body._replace(update=packed(np.load(BytesIO(body.update.data)) * np.float32(factor)))


class InProcess:
    """A link to the clients of a task; `there` lists the clients that are online and may change between rounds."""

    def __init__(self, task: Task, there: Iterable[int], answer: Answer = lambda order, body: None) -> None:
        self.task, self.there, self.answer = task, list(there), answer
        self.clock, self.sent = 0.0, 0
        self.inbox: dict[str, list[Arrival]] = {}
        self.forgotten: list[str] = []

    def online(self) -> Mapping[int, str]:
        return {NODES + i: key_of(i) for i in self.there}

    def send(self, orders: Sequence[Order], ttl: float) -> Sequence[str | None]:
        return [self._take(order) for order in orders]

    def _take(self, order: Order) -> str:
        self.sent += 1
        handle, body = f"m{self.sent}", self.trained(order)
        given = self.answer(order, body)
        honest = [Arrival(handle, order.node, body)]
        self.inbox[handle] = honest if given is None else [a._replace(message=a.message or handle) for a in given]
        return handle

    def trained(self, order: Order) -> Body:
        """An honest reply."""
        if order.evaluate:
            return score_on_order(OneClient(self.task, order.client), order)
        return train_on_order(self.task, order)

    def pull(self, messages: Sequence[str]) -> Sequence[Arrival]:
        return [a for message in messages for a in self.inbox.pop(message, [])]

    def forget(self, messages: Sequence[str]) -> None:
        self.forgotten += messages
        for message in messages:
            self.inbox.pop(message, None)

    def now(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

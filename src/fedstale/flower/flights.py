"""A grid that waits for nobody: nodes stay at work while the server steps.

Flower's `Strategy.start` sends the messages of a round and waits for all replies. With this grid in the place of
its own, the wait for training ends when a step is due by the pace, and what is late counts in a later step.
"""

import logging
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict

from fedstale.clock import Pace, Rule
from fedstale.core import Array

log = logging.getLogger("flwr")
SHORTEST, LONGEST = 0.05, 2.0  # seconds between two pulls
SHARE = 0.1  # of the time without an arrival: the next pull


class Flight(NamedTuple):
    """A node at work."""

    message: Message
    version: int  # the step after which its parameters were sent
    since: float

    @property
    def node(self) -> int:
        return int(self.message.metadata.dst_node_id)


class Landed(NamedTuple):
    """A node that is not at work any more."""

    flight: Flight
    reply: Message | None  # None: it has not answered in time

    @property
    def good(self) -> bool:
        """Whether it has answered, and not with an error."""
        return self.reply is not None and not self.reply.has_error()


class Work(NamedTuple):
    """What nodes are sent until the next step."""

    content: RecordDict
    version: int
    params: Array  # (d,) of the content


class Flights:
    """A Grid for `Strategy.start` whose training messages stay in flight from step to step."""

    def __init__(self, grid: Any, pace: Pace) -> None:
        self.grid, self.pace = grid, pace
        self.work: Work | None = None  # set when a step opens, None when it has closed
        self.flying: dict[str, Flight] = {}  # by the id of the message
        self.landed: dict[int, Landed] = {}  # by node, since the last step
        self.params: dict[int, Array] = {}  # version → parameters that somebody has or had in this step

    def get_nodes(self) -> Iterable[Any]:
        nodes: Iterable[Any] = self.grid.get_nodes()
        return nodes

    def get_node_ids(self) -> Iterable[int]:
        """All nodes that are online."""
        nodes: Iterable[int] = self.grid.get_node_ids()
        return nodes

    def idle(self) -> list[int]:
        """The nodes that are online and not at work."""
        busy = {flight.node for flight in self.flying.values()}
        return [node for node in self.get_node_ids() if node not in busy]

    def wait_for(self, nodes: int) -> None:
        """Wait until so many nodes are online, as FedAvg does before every round."""
        while (online := len([*self.get_node_ids()])) < nodes:
            log.info("Waiting for nodes to connect: %d connected (minimum required: %d).", online, nodes)
            time.sleep(1)

    def open(self, work: Work) -> None:
        """Let the next `send_and_receive` be the wait for a step, with this work for idle nodes."""
        needed = {flight.version for flight in self.flying.values()}
        self.params = {version: x for version, x in self.params.items() if version in needed}
        self.params[work.version], self.work, self.landed = work.params, work, {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies that a step is made of; evaluation is sent and waited for as it is without a pace."""
        if self.work is None:
            replies: Iterable[Message] = self.grid.send_and_receive(messages, timeout=timeout)
            return replies
        work, self.work = self.work, None
        return self._step(work, 3600.0 if timeout is None else timeout)

    def _step(self, work: Work, timeout: float) -> list[Message]:
        """Keep nodes at work until the step is due; a node that fails is not asked again before the next one."""
        received, failed, opened = 0, set[int](), time.monotonic()
        heard = opened
        while True:
            idle = [node for node in self.idle() if node not in failed]
            rule = self.pace.rule(len(idle) + len(self.flying))
            self._send(work, idle, rule.most, timeout)
            came = list(self._land(timeout))
            received += sum(landed.good for landed in came)
            failed |= {landed.flight.node for landed in came if not landed.good}
            now = time.monotonic()
            if _due(rule, received, now - opened) or (failed and not self.flying and rule.arrivals):
                return [landed.reply for landed in self.landed.values() if landed.reply is not None]
            heard = now if came else heard
            if not came:
                time.sleep(min(max(SHARE * (now - heard), SHORTEST), LONGEST))

    def _send(self, work: Work, idle: list[int], most: int, timeout: float) -> None:
        """Send the work to idle nodes, drawn as FedAvg draws them, until as many as allowed are at work."""
        for node in random.sample(idle, max(0, min(most - len(self.flying), len(idle)))):
            message = Message(work.content, dst_node_id=node, message_type="train", ttl=timeout)
            for name in self.grid.push_messages([message]):  # none if the node has just left
                self.flying[name] = Flight(message, work.version, time.monotonic())

    def _land(self, timeout: float) -> Iterator[Landed]:
        """Who has answered, and who has not in time; of two replies of a node the newer counts."""
        now, came = time.monotonic(), list[tuple[str, Message | None]]()
        if self.flying:
            came = [(m.metadata.reply_to_message_id, m) for m in self.grid.pull_messages([*self.flying])]
        came += [(name, None) for name, flight in self.flying.items() if now - flight.since >= timeout]
        for name, reply in came:
            if (flight := self.flying.pop(name, None)) is not None:
                landed = Landed(flight, reply)
                if landed.good or flight.node not in self.landed:
                    self.landed[flight.node] = landed
                yield landed


def _due(rule: Rule, received: int, seconds: float) -> bool:
    """Whether the server steps now."""
    enough = rule.arrivals is not None and received >= rule.arrivals
    return enough or (rule.seconds is not None and seconds >= rule.seconds)

"""A grid that waits for nobody: nodes stay at work while the server steps.

Flower's `Strategy.start` sends the messages of a round and waits for all replies. With this grid in the place of
its own, the wait for training ends when a step is due by the pace, and what is late counts in a later step.
"""

import logging
import random
import time
from collections.abc import Iterable, Iterator, Set
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict

from fedstale.core import Array
from fedstale.flower.federation.protocol.exchange import take_turns
from fedstale.participation.clock import Pace

log = logging.getLogger("flwr")
PAUSES = (0.05, 2.0)  # seconds between two pulls: at least, and at most


class Flight(NamedTuple):
    """A node at work."""

    message: Message
    version: int  # the step after which its parameters were sent
    since: float

    @property
    def node(self) -> int:
        return int(self.message.metadata.dst_node_id)


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
        self.landed: dict[int, tuple[Flight, Message | None]] = {}  # by node, since the last step; with its reply
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
        def turn(failed: Set[int]) -> list[tuple[int, bool]]:
            idle = [node for node in self.idle() if node not in failed]
            self._send(work, idle, self.pace.rule(len(idle) + len(self.flying)).most, timeout)
            return list(self._land(timeout))

        take_turns(self.pace, turn, self.flying, self, PAUSES)
        return [reply for _, reply in self.landed.values() if reply is not None]

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _send(self, work: Work, idle: list[int], most: int, timeout: float) -> None:
        """Send the work to idle nodes, drawn as FedAvg draws them, until as many as allowed are at work."""
        for node in random.sample(idle, max(0, min(most - len(self.flying), len(idle)))):
            message = Message(work.content, dst_node_id=node, message_type="train", ttl=timeout)
            for name in self.grid.push_messages([message]):  # none if the node has just left
                self.flying[name] = Flight(message, work.version, time.monotonic())

    def _land(self, timeout: float) -> Iterator[tuple[int, bool]]:
        """Who has answered or not in time, and whether without an error; of two replies the newer counts."""
        now, came = time.monotonic(), list[tuple[str, Message | None]]()
        if self.flying:
            came = [(m.metadata.reply_to_message_id, m) for m in self.grid.pull_messages([*self.flying])]
        came += [(name, None) for name, flight in self.flying.items() if now - flight.since >= timeout]
        for name, reply in came:
            if (flight := self.flying.pop(name, None)) is not None:
                good = reply is not None and not reply.has_error()
                if good or flight.node not in self.landed:
                    self.landed[flight.node] = flight, reply
                yield flight.node, good

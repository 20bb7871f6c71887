"""A grid with a clock of its own: nodes take so many seconds for their work, and nobody waits for them."""

import heapq
from collections.abc import Iterable, Sequence

from flwr.app import Message

from tests.flower.direct import Answer, Direct


class Virtual(Direct):
    """As Direct, with push and pull: a message to node k is answered after `seconds[k]`; it is its own `time`."""

    def __init__(self, answer: Answer, seconds: Sequence[float]) -> None:
        super().__init__(len(seconds), answer)
        self.seconds, self.now = seconds, 0.0
        self.queue: list[tuple[float, int, Message]] = []
        self.answers: dict[str, list[Message]] = {}  # by the id of the message
        self.asked: list[int] = []  # partitions, in the order of the messages

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            self.sent += 1
            names.append(f"m{self.sent}")
            message.metadata.__dict__["_message_id"] = names[-1]
            k = message.metadata.dst_node_id - 1000
            self.asked.append(k)
            heapq.heappush(self.queue, (self.now + self.seconds[k], self.sent, message))
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for name in message_ids for reply in self.answers.pop(name, [])]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Time passes up to the next answers, or by so many seconds if there are none to come."""
        self.now = self.queue[0][0] if self.queue else self.now + seconds
        while self.queue and self.queue[0][0] <= self.now:
            _, _, message = heapq.heappop(self.queue)
            self.answers[message.metadata.message_id] = super().send_and_receive([message])

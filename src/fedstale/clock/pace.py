"""When the server steps: in rounds that wait for clients, after so many arrivals, or by the clock."""

import math
from typing import NamedTuple, Protocol, runtime_checkable

from fedstale.core import part, require


class Rule(NamedTuple):
    """What a pace asks of a timeline."""

    most: int  # clients in flight at once
    arrivals: int | None = None  # a step is made after so many; by `seconds` or when nobody is left if None
    seconds: float | None = None  # a step is made at the latest after so many
    together: bool = False  # all are asked when the round opens, and those who are late are not waited for


@runtime_checkable
class Pace(Protocol):
    """When the server steps, and how many clients it keeps at work."""

    def rule(self, n: int) -> Rule:
        """The pace with n clients."""


@part
class Rounds:
    """Synchronous rounds: `ask` of the clients that are there, and wait for the first `need` of them.

    A round opens as soon as somebody is there, and asks all who are there if `ask` is left out. It closes with the
    reply number `need` (all, if left out), after `deadline` seconds, or when nobody is left to wait for. What is
    not there by then is lost: `need` below `ask` is over-selection, and never hears the slowest clients.
    """

    ask: int | None = None
    need: int | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        for name in ("ask", "need"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1, got {value}")
        ok = self.ask is None or self.need is None or self.need <= self.ask
        require(ok, f"need must be at most ask, {self.ask}, got {self.need}")
        require(
            self.deadline is None or self.deadline > 0, f"deadline must be above 0 seconds, got {self.deadline}"
        )

    def rule(self, n: int) -> Rule:
        return Rule(n if self.ask is None else min(self.ask, n), self.need, self.deadline, together=True)


@part
class Buffer:
    """An asynchronous server: a step after every `size` arrivals, with up to `concurrency` clients at work."""

    size: int = 10
    concurrency: int = 10

    def __post_init__(self) -> None:
        require(self.size >= 1, f"size must be at least 1, got {self.size}")
        require(self.concurrency >= 1, f"concurrency must be at least 1, got {self.concurrency}")

    def rule(self, n: int) -> Rule:
        return Rule(min(self.concurrency, n), self.size)


@part
class Ticks:
    """An asynchronous server that steps every so many `seconds`, with whatever has arrived since the last step."""

    seconds: float = 60.0
    concurrency: int = 10

    def __post_init__(self) -> None:
        require(0 < self.seconds < math.inf, f"seconds must be above 0 and finite, got {self.seconds}")
        require(self.concurrency >= 1, f"concurrency must be at least 1, got {self.concurrency}")

    def rule(self, n: int) -> Rule:
        return Rule(min(self.concurrency, n), None, self.seconds)

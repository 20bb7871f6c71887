"""When the server steps: in rounds that wait for clients, after so many arrivals, or by the clock."""

from typing import NamedTuple, Protocol, runtime_checkable

from fedstale.core import Count, Positive, PositiveFinite, part, require


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

    ask: Count | None = None
    need: Count | None = None
    deadline: Positive | None = None

    def __post_init__(self) -> None:
        ok = self.ask is None or self.need is None or self.need <= self.ask
        require(ok, f"need must be at most ask, {self.ask}, got {self.need}")

    def rule(self, n: int) -> Rule:
        return Rule(n if self.ask is None else min(self.ask, n), self.need, self.deadline, together=True)


@part
class Buffer:
    """An asynchronous server: a step after every `size` arrivals, with up to `concurrency` clients at work."""

    size: Count = 10
    concurrency: Count = 10

    def rule(self, n: int) -> Rule:
        return Rule(min(self.concurrency, n), self.size)


@part
class Ticks:
    """An asynchronous server that steps every so many `seconds`, with whatever has arrived since the last step."""

    seconds: PositiveFinite = 60.0
    concurrency: Count = 10

    def rule(self, n: int) -> Rule:
        return Rule(min(self.concurrency, n), None, self.seconds)

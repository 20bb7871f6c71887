"""What the round loop needs of a network: see who is there, send orders, pull what has come."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from fedstale.core import Array, Local
from fedstale.federation.protocol.validation import Body


class LinkDown(Exception):
    """The server cannot reach its own network: an infrastructure failure, never a client's absence."""


class Fault(StrEnum):
    """Why there is no body in an arrival."""

    absent = "absent"  # the client is gone, or its time is up
    rejected = "rejected"  # the client's code failed
    infrastructure = "infrastructure"  # the system between failed


class Order(NamedTuple):
    """Work for one client in one round."""

    node: int
    client: int
    t: int
    token: str
    run: str
    seed: int
    local: Local
    params: Array
    drift: Array | None = None  # (d,) added to every gradient (SCAFFOLD)
    train: bool = True  # False: only the loss is asked for


class Arrival(NamedTuple):
    """What came in answer to a message."""

    message: str  # the handle that `send` gave
    node: int | None  # who sent it; None if the link itself says so
    body: Body | None
    fault: Fault | None = None
    reason: str = ""


class Link(Protocol):
    """A network. Any method may raise LinkDown."""

    def online(self) -> Mapping[int, str]:
        """Node → key hash, of all nodes that are reachable now."""
        ...

    def send(self, orders: Sequence[Order], ttl: float) -> Sequence[str | None]:
        """A handle for each order, None where the link did not take it; replies after `ttl` s are refused."""
        ...

    def pull(self, messages: Sequence[str]) -> Sequence[Arrival]:
        """What has come for these handles since the last call."""
        ...

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...

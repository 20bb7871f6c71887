"""The network that the round loop needs: who is online, send orders, pull replies."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from fedstale.core import Array, Local
from fedstale.federation.protocol.validation import Body


class LinkDown(Exception):
    """The server cannot reach its own network: an infrastructure failure, never a client's absence."""


class Fault(StrEnum):
    """Why an arrival has no body."""

    absent = "absent"  # the client has left, or its time is up
    rejected = "rejected"  # the client's code failed
    infrastructure = "infrastructure"  # the network between server and client failed


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
    """The answer to a message."""

    message: str  # the handle that `send` gave
    node: int | None  # the sender; None if the link itself reports a fault
    body: Body | None
    fault: Fault | None = None
    reason: str = ""


class Link(Protocol):
    """A network. Any method may raise LinkDown."""

    def online(self) -> Mapping[int, str]:
        """Node → hash of its key, for all nodes that are online."""
        ...

    def send(self, orders: Sequence[Order], ttl: float) -> Sequence[str | None]:
        """A handle for each order, None where the link did not take it; replies later than `ttl` s are refused."""
        ...

    def pull(self, messages: Sequence[str]) -> Sequence[Arrival]:
        """The answers to these handles that came since the last call."""
        ...

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...

"""The network that the round loop needs: who is online, send orders, pull replies."""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from fedstale import core
from fedstale.core import Array, Floats, Local


class Void(Exception):
    """The round cannot be used: something between server and clients failed, not a client."""


class LinkDown(Void):
    """The server cannot reach its own network: an infrastructure failure, never a client's absence."""


class Fault(StrEnum):
    """Why an arrival has no body."""

    absent = "absent"  # the client has left, or its time is up
    rejected = "rejected"  # the client's code failed
    infrastructure = "infrastructure"  # the network between server and client failed


class Share(NamedTuple):
    """What a client that keeps its own memory is told, to make of its update what it adds to the server's sums."""

    rule: str  # the strategy, as JSON
    order: core.Order
    counted: int  # the round in which the client was counted last; 0 if its memory is empty
    epoch: int  # how often all memories began anew
    size: int  # numbers in the reply


class Order(NamedTuple):
    """Work for one client in one round."""

    node: int
    client: int
    t: int
    token: str  # drawn for this order: a reply to an earlier try of the same round has another
    run: str  # digest of the configuration
    seed: int
    local: Local
    params: Array
    drift: Array | None = None  # (d,) added to every gradient (SCAFFOLD)
    train: bool = True  # False: only the loss is asked for
    buffers: Floats | None = None  # (b,) of a model whose buffers training changes
    evaluate: bool = False  # asks for the scores of the parameters on the client's test samples; not with `train`
    share: Share | None = None  # with memory = "clients": the reply has what is added in the place of the update


class Body(namedtuple("Body", "t client token run loss update buffers", defaults=[None])):
    """The fields of a reply as they arrived: any of them may have any type; an honest one has arrays at its end."""

    __slots__ = ()


class Arrival(NamedTuple):
    """The answer to a message."""

    message: str  # the handle that `send` gave
    node: int | None  # the sender; None if the link itself reports a fault
    body: Body | None
    fault: Fault | None = None
    reason: str = ""


class Clock(Protocol):
    """Time, which a test may have for itself."""

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class Link(Clock, Protocol):
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

    def forget(self, messages: Sequence[str]) -> None:
        """Nobody waits for answers to these handles any more: the network keeps neither orders nor replies."""
        ...

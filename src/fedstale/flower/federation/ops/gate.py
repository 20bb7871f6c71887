"""What the SuperLink lets in, decided before it reads a request.

Flower serves three interfaces on one port. Clients need the fleet's, where they prove their keys. The other two
start code on the server: control takes commands from anybody, and runtime hands the server's work to anybody. Here
both answer this machine only, control only with the federation's token. Fleet answers keys of the
roster only: Flower knows all that ever were in it. No request may be larger than MOST, and a client proves its key
before more than UNPROVEN bytes of its request are read.

A client that polls and has nothing new to get is answered here: Flower takes ten times as long to find out. Every
client is told how many there are, because with many of them each polls more rarely. While the link is busy with
some clients, others are told that there is nothing new: they ask again, and nobody waits long for an answer.
"""

import hashlib
import hmac
import ipaddress
import secrets
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from fedstale.lab.runs.store import write_secret

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Mapping[bytes, bytes]

MOST = 16 << 20  # bytes of a request: Flower sends arrays in pieces of 5 MB, and apps of at most 10 MB
FORM = 1 << 20  # bytes of a client's request that carries no array
UNPROVEN = 64 << 10
CONTROL, RUNTIME, FLEET = "/v1/control/", "/v1/runtime/", "/v1/fleet/"
OPEN = (FLEET, "/health")
STORE, ORDERS, KEY = "/v1/fleet/push-object", "/v1/fleet/pull-messages", b"flwr-public-key"
SIGN_IN = "/v1/fleet/activate-node"
LARGEST = 1 << 30  # bytes of the answer to an order while the size of the model is not known
EXTRA = 2 << 20  # bytes of an answer besides its update
EMPTY = 64  # bytes of an answer without an order, at most
PUSH = "/v1/runtime/push-messages"  # brings orders to the link
SURE = 300.0  # seconds after which Flower is asked for a client's orders although nothing has brought any
CLIENTS = b"fedstale-clients"  # header of an answer: the clients in the roster


def control_token(folder: Path) -> str:
    """The secret that commands to the link of a federation need; it is made when it is first asked for."""
    path = folder / "keys" / "control.token"
    if not path.exists():
        new_token(folder)
    return path.read_text()


def new_token(folder: Path) -> None:
    """Put another secret in the place of the token; the link knows it at once, and the old one is worth nothing."""
    write_secret(folder / "keys" / "control.token", secrets.token_hex(32).encode())


def reply_limit(folder: Path) -> int:
    """The bytes that a client may send in answer to one order: what the server has noted, or LARGEST."""
    try:
        return int((folder / "flwr" / "reply.limit").read_text())
    except (OSError, ValueError):
        return LARGEST


def note_reply_limit(folder: Path, size: int) -> None:
    """Let clients answer with updates of this size, and a little more."""
    path = folder / "flwr" / "reply.limit"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(str(size + size // 8 + EXTRA))


class Idle(NamedTuple):
    """Flower's answer that there is no order for a client."""

    pushes: int  # before it was asked
    until: float
    answer: list[dict[str, Any]]


class Gate:
    """ASGI middleware around the SuperLink's app."""

    def __init__(
        self, app: App, token: Callable[[], str], limit: Callable[[], int] = lambda: LARGEST,
        proven: Callable[[Headers], bool] = lambda headers: True,
        member: Callable[[bytes], bool] = lambda key: True,
        note: Callable[[str, Mapping[str, Any]], None] = lambda event, about: None,
        clients: Callable[[], int] = lambda: 0, busy: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """`token()` is what commands need, `limit()` how many bytes a client may store from one order to the next.

        `proven(headers)` is whether a client of the federation has signed a request, `member(key)` whether a public
        key is in the roster: Flower itself knows all that ever were. `note(event, about)` keeps the audit log.
        `clients()` is the number of clients in the roster, `busy()` whether requests of clients wait for others.
        """
        self.app, self.token, self.limit, self.proven, self.member = app, token, limit, proven, member
        self.note, self.clients, self.busy = note, clients, busy
        self.pushes = 0  # so far: each may have brought orders
        self.idle: dict[bytes, Idle] = {}  # public key → how Flower has said last that there is no order for it
        self.stored: dict[bytes, int] = {}  # public key → bytes since its last order

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it without reading its body."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        refused = None if scope["type"] == "lifespan" else self.refusal(scope)
        if refused is None:
            for event in (idle := self._nothing_new(scope)):
                await send(event)
            if not idle:
                await self._counted(scope, receive, send)
            return
        status, why = refused
        peer = scope.get("client") or ("unknown",)
        key = _sender(dict(scope.get("headers", ())))
        self.note(
            "refused", {"from": peer[0], "why": why} | ({"key": hashlib.sha256(key).hexdigest()} if key else {})
        )
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": why.encode()})

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the reason of a refusal; None if the request may pass."""
        path, headers = str(scope.get("path", "")), dict(scope.get("headers", ()))
        if not path.startswith((*OPEN, CONTROL, RUNTIME)):
            return 404, "there is nothing here"
        if path.startswith((CONTROL, RUNTIME)) and not _local(scope):
            return 403, "this interface answers the machine of the link only"
        given = headers.get(b"authorization", b"")
        if path.startswith(CONTROL) and not hmac.compare_digest(given, f"Bearer {self.token()}".encode()):
            return 403, "commands need the token in keys/control.token of the federation's folder"
        size = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not size.isdigit():
            return 411, "a request must state its length"
        if refused := self._too_much(path, headers, int(size)):
            return refused
        strange = path.startswith(FLEET) and not self.member(_sender(headers))
        return (412, "this key is not in the roster of the federation") if strange else None

    def _too_much(self, path: str, headers: Headers, size: int) -> tuple[int, str] | None:
        """The refusal of a request for its size; None if it may pass."""
        most = MOST if path.startswith((CONTROL, RUNTIME)) or path == STORE else FORM
        if size > most:
            return 413, f"a request may have {most} bytes, got {size}"
        if path.startswith(FLEET) and (size > UNPROVEN or path == STORE) and not self.proven(headers):
            return 401, "this is not signed by a client of the federation, or its clock is wrong"
        if path == STORE and self.stored.get(_sender(headers), 0) + size > (most := self.limit()):
            return 413, f"the answer to an order may have {most} bytes"
        return None

    def _nothing_new(self, scope: Scope) -> list[dict[str, Any]]:
        """Flower's last answer to a poll of this client, if that was no order, and none can have come since.

        One that has come is kept back while the link is busy.
        """
        if scope.get("path") != ORDERS:
            return []
        headers = dict(scope["headers"])
        idle = self.idle.get(_sender(headers))
        if idle is None or time.monotonic() > idle.until or (idle.pushes != self.pushes and not self.busy()):
            return []
        return idle.answer if self.proven(headers) else []

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; counts what a client stores, from zero again when it is handed an order.

        Keeps the answer to a poll that brings none.
        """
        path, headers = str(scope.get("path", "")), dict(scope.get("headers", ()))
        key, got, pushes, answer = _sender(headers), [0, 0], self.pushes, list[dict[str, Any]]()
        size = int(headers.get(b"content-length", b"0")) if path == STORE else 0

        async def counting(event: dict[str, Any]) -> None:
            got[0] = event.get("status", got[0])
            got[1] += len(event.get("body", b""))  # status and length of the answer
            if path == ORDERS and got[0] == 200 and got[1] > EMPTY:
                self.stored.pop(key, None)
            elif path == ORDERS:
                if "headers" in event:
                    event["headers"] = [*event["headers"], (CLIENTS, str(self.clients()).encode())]
                answer.append(event)
            await send(event)

        if size:  # counts at once: a client may send several requests at the same time
            self.stored[key] = self.stored.get(key, 0) + size
        try:
            await self.app(scope, receive, counting)
            if path == ORDERS and key and got[0] == 200 and got[1] <= EMPTY:
                self.idle[key] = Idle(pushes, time.monotonic() + SURE, answer)
        finally:
            self.pushes += path == PUSH
            if path == SIGN_IN and got[0] == 200:
                self.note("signed in", {"key": hashlib.sha256(key).hexdigest()})
            if size and got[0] != 200:  # nothing was stored
                self.stored[key] = max(self.stored.get(key, 0) - size, 0)


def _sender(headers: Headers) -> bytes:
    """The public key that a request states, decoded: it can be encoded in several ways."""
    try:
        return b64decode(headers.get(KEY, b""), validate=True)
    except ValueError:
        return b""


def _local(scope: Scope) -> bool:
    """Whether a request comes from the machine that it goes to."""
    peer, here = scope.get("client"), scope.get("server")
    try:
        address = ipaddress.ip_address(peer[0]) if peer else None
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address is not None and ((mapped or address).is_loopback or bool(here and peer and peer[0] == here[0]))

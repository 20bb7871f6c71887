"""Flower's SuperLink behind our gate: `python -m fedstale.flower.federation.ops.superlink DIR --host … --port …`.

DIR is the federation's folder; the other arguments are those of `flower-superlink`. Connections that do not make
progress are closed; uvicorn by itself keeps them for ever. A peer has QUIET seconds for the headers of a request,
then as long as its body takes at SLOWEST bytes per second.
"""

import asyncio
import binascii
import datetime
import logging
import resource
import sqlite3
import sys
from base64 import b64decode
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from uvicorn.protocols.http import auto
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fedstale.core import BadInput
from fedstale.flower.federation import adapter
from fedstale.flower.federation.client.fleet import AHEAD, BEHIND
from fedstale.flower.federation.ops.gate import Gate, Headers, control_token, reply_limit
from fedstale.flower.federation.ops.keeper import keep_the_keeper
from fedstale.flower.federation.state import audit, roster

SIGNED = ("public-key", "signature")
SPARE = 64 << 20  # bytes that deleted messages may leave in the database
QUIET = 30.0  # seconds
SLOWEST = 4096  # bytes per second of a body
KEPT = 90  # seconds that the connection of a client stays open without a request: longer than two polls
HEADERS = 64 << 10  # bytes of the headers of a request, and as much as comes with the last of them


def main() -> None:
    """Run the link; the gate is the outermost middleware of its app (pinned version: an extension's place)."""
    folder = Path(sys.argv.pop(1))
    members = Members(folder / "roster.json")
    limits: dict[str, Any] = {"token": partial(control_token, folder), "limit": partial(reply_limit, folder)}
    limits |= {"note": audit.Once(folder), "clients": members.count, "member": members}
    limits |= {"proven": partial(proven, members)}
    from fedstale.flower.federation.ops.express import Express, Queue  # loads Flower's own link

    queue, middleware = Queue(), adapter.extensions.Middleware
    around = (middleware(Gate, busy=queue.busy, **limits), middleware(Express, queue=queue))
    adapter.extensions.get_middleware = lambda: around
    hurry()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # every client has a connection
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.getLogger("uvicorn.access").addFilter(lambda record: False)  # a line per poll of each client
    compact(folder / "link.sqlite")
    keep_the_keeper()
    adapter.flower_superlink()


class Hurried(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]  # uvicorn may be missing
    """uvicorn's HTTP, with a time for every part of a request and a size for its headers."""

    timer: asyncio.TimerHandle | None = None
    received: int | None = 0  # bytes of the headers so far; None while there is a body

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._within(QUIET)

    def data_received(self, data: bytes) -> None:
        if self.received is not None:
            if self.received > HEADERS:
                self.transport.abort()
                return
            self.received += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.received = 0
        self._within(QUIET)

    def on_headers_complete(self) -> None:
        size = dict(self.headers).get(b"content-length", b"")
        self.received = None
        if self.url.startswith(b"/v1/fleet/"):  # whoever is no client is refused, and the connection closed
            self.timeout_keep_alive = KEPT
        self._within(QUIET + (int(size) / SLOWEST if size.isdigit() else 0))
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._within(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._within(None)
        super().connection_lost(exc)

    def _within(self, seconds: float | None) -> None:
        """Close the connection unless the next part of a request is here in time; None: nothing is expected."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def hurry() -> None:
    """Let the servers that uvicorn starts from now on close connections that make no progress."""
    auto.AutoHTTPProtocol = Hurried


class Members:
    """Whether a public key is in the roster, which is read again when its file has changed."""

    def __init__(self, path: Path) -> None:
        self.path, self.keys = path, frozenset[str]()
        self.version: tuple[int, ...] = ()

    def __call__(self, key: bytes) -> bool:
        """Whether the owner of this key is a client now; nobody is while the roster cannot be read."""
        return self.count() > 0 and roster.key_hash(key) in self.keys

    def count(self) -> int:
        """The clients now; 0 while the roster cannot be read."""
        try:
            found = self.path.stat()
            version = (found.st_ino, found.st_mtime_ns, found.st_size)
            if version != self.version:
                self.keys, self.version = frozenset(roster.read(self.path).by_key()), version
        except (OSError, BadInput):
            return 0
        return len(self.keys)


def proven(member: Callable[[bytes], bool], headers: Headers) -> bool:
    """Whether a client of the roster has signed a request, as Flower checks it, but only after reading the body."""
    try:
        key, signature = (b64decode(headers[f"flwr-{name}".encode()], validate=True) for name in SIGNED)
        stamp = headers[b"flwr-timestamp"]
        signed = datetime.datetime.fromisoformat(stamp.decode())
        age = (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
        timely = -AHEAD < age < BEHIND and member(key)
        return timely and bool(adapter.verify_signature(adapter.bytes_to_public_key(key), stamp, signature))
    except (KeyError, ValueError, TypeError, binascii.Error):
        return False


def compact(database: Path) -> None:
    """Give back the room of deleted messages, if there is much of it; nobody uses the database yet."""
    if not database.exists():
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as opened:  # the link will say what is wrong
        free, page = (opened.execute(f"PRAGMA {what}").fetchone()[0] for what in ("freelist_count", "page_size"))
        if free * page > SPARE:
            opened.execute("VACUUM")


if __name__ == "__main__":
    main()

"""Connections to the SuperLink that do not make progress are closed; uvicorn by itself keeps them for ever.

A peer has QUIET seconds for the headers of a request, then as long as its body takes at SLOWEST bytes per second.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http import auto
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

QUIET = 30.0  # seconds
SLOWEST = 4096  # bytes per second of a body
KEPT = 90  # seconds that the connection of a client stays open without a request: longer than two polls
HEADERS = 64 << 10  # bytes of the headers of a request, and as much as comes with the last of them


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
    """Let the servers that uvicorn starts from now on close such connections."""
    auto.AutoHTTPProtocol = Hurried

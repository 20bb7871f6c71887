"""What keeps the page on this machine: the headers of every answer, and a socket on the loopback."""

import socket
from typing import Any

from starlette.datastructures import MutableHeaders

from fedstale.core import BadInput

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin", "cache-control": "no-store",
}  # fmt: skip


class Headers:
    """Adds the headers that keep the page on this machine."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, with_headers)


def listen(port: int) -> socket.socket:
    """A socket on the loopback; a port that is in use is refused with a sentence."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
        sock.listen(128)  # who comes before the server is ready waits
    except OSError as error:
        sock.close()
        way = "--port names another, 0 a free one"
        raise BadInput(f"port {port} cannot be used ({error.strerror}); {way}") from None
    return sock

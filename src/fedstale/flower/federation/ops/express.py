"""A short way through the SuperLink for the requests that clients and the server's app send again and again.

Flower takes every request through nine layers of middleware and three threads, which costs the link five times as
much as the work itself. Here messages, their parts and heartbeats go straight to Flower's own functions, in one
thread, with the checks and the errors that they have there; the server does not wait behind its clients.
Everything else goes the long way, a sign-in too.
"""

from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response

from fedstale.flower.federation import adapter
from fedstale.flower.federation.ops.gate import FLEET, RUNTIME, App, Receive, Scope, Send

FLEETS = adapter.functions("fleet_", FLEET)  # path → Flower's function for it
SERVERS = adapter.functions("runtime_", RUNTIME)
WAITING = 12  # requests of clients that wait for a thread: then no further client is handed an order
AT_ONCE = 2  # threads for clients, and as many for the server: only one at a time can write to the database
OFTEN = FLEETS.keys() | SERVERS.keys()


class Queue:
    """The threads of the short way, and who waits for them."""

    def __init__(self) -> None:
        self.clients, self.server = anyio.CapacityLimiter(AT_ONCE), anyio.CapacityLimiter(AT_ONCE)

    def busy(self) -> bool:
        """Whether many requests of clients, received to their end, are not yet answered."""
        return bool(self.clients.statistics().tasks_waiting >= WAITING)


class Express:
    """ASGI middleware around the SuperLink's app, behind the gate."""

    def __init__(self, app: App, queue: Queue) -> None:
        self.app, self.queue = app, queue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope.get("path") not in OFTEN or scope.get("method") != "POST":
            await self.app(scope, receive, send)
            return
        response = await adapter.http_error_translator(Request(scope, receive), self._answer)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        kind, body = adapter.PROTOBUF_REQUEST_TYPES["POST", request.url.path], await request.body()
        try:
            request.state.protobuf_request = kind.FromString(body)
        except adapter.DecodeError:
            return Response("this is not what Flower sends", 400)
        threads = self.queue.clients if request.url.path in FLEETS else self.queue.server
        answer = await anyio.to_thread.run_sync(_work, request, limiter=threads)
        return Response(answer.SerializeToString(), media_type=adapter.PROTOBUF_MEDIA_TYPE)


def _work(request: Request) -> Any:
    """What Flower does when it knows who asks."""
    path, asked = request.url.path, request.state.protobuf_request
    if call := FLEETS.get(path):
        adapter.authenticate_node(request)
        return call(asked, adapter.get_linkstate(request))
    state = adapter.get_runtime_state(request)
    task = adapter.authenticate_task(request, request.headers.get(adapter.TASK_TOKEN_HEADER), state)
    return SERVERS[path](asked, state, adapter.get_runtime_handlers(request), task)

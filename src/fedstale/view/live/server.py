"""The server of the page: a few addresses that are read and, with `--control`, one that stops and resumes runs.

Its headers and its socket on the loopback keep the page on this machine.
"""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedstale.core import BadInput, known
from fedstale.lab.runs.store import finite
from fedstale.view.live import axes
from fedstale.view.live.control import Control
from fedstale.view.live.experiment import Experiments, contests
from fedstale.view.live.index import Index, Row
from fedstale.view.live.lists import Lists
from fedstale.view.page.page import library

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
STATIC = {  # address → where the file is
    **dict.fromkeys(("page.css", "page.js", "control.js", "lists.js", "experiment.js"), "fedstale.view.live"),
    **dict.fromkeys(("report.css", "figures.js"), "fedstale.view.page"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin", "cache-control": "no-store",
}  # fmt: skip
STRANGE = "the files of these runs have another shape than this version writes"
STRANGER = "the token is not that of this server: open the address that `fedstale ui --control` has printed"
SHARE = 100 / min(os.cpu_count() or 1, 4)  # times what a page or a look took is waited: 1 % of the machine for each
LONGEST = 15.0  # seconds that it waits
TICK = 0.5  # seconds from one look at the store to the next, at least


class Watcher:
    """Scans the store in a thread of its own as long as somebody looks at the page."""

    def __init__(self, index: Index) -> None:
        self.index, self.seen, self.over = index, time.monotonic(), threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        while not self.over.is_set():
            began = time.thread_time()
            if time.monotonic() - self.seen < LONGEST:
                self.index.scan()
            self.over.wait(max(TICK, SHARE * (time.thread_time() - began)))


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


class Page:
    """The answers of the server; without a `control` there is none that changes anything."""

    def __init__(self, index: Index, about: str, control: Control | None = None) -> None:
        self.index, self.about, self.control = index, about, control
        self.lists, self.experiments, self.watcher = Lists(index), Experiments(index), Watcher(index)
        self.lock = threading.Lock()  # one experiment is built at a time

    def app(self) -> Starlette:
        """The application for uvicorn, or for a test."""
        routes = [
            Route("/", self.page), Route("/static/{name}", self.static), Route("/api/events", self.events),
            Route("/api/runs", self._answer(lambda r: self.lists.runs(r.query_params))),
            Route("/api/experiments", self._answer(lambda r: self.lists.experiments(r.query_params))),
            Route("/api/experiment/{key}", self._answer(self._experiment)),
            Route("/api/experiment/{key}/compare", self._answer(self._compare)),
            Route("/api/experiment/{key}/{figure:int}.csv", self._answer(self._csv)),
            Route("/api/run", self._answer(self._run)),
            *([Route("/api/control/{action}", self._answer(self._act), methods=["POST"])] if self.control else []),
        ]  # fmt: skip
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
        return Starlette(routes=routes, middleware=[Middleware(Headers), hosts], lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.watcher.thread.start()
        yield
        self.watcher.over.set()

    def _answer(self, make: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """A handler that answers with JSON; what cannot be answered is a sentence."""

        async def answer(request: Request) -> Response:
            self.watcher.seen = time.monotonic()
            given = request.headers.get("x-fedstale-token", "")
            if request.method not in ("GET", "HEAD") and not (self.control and self.control.may(given)):
                return JSONResponse({"error": STRANGER}, status_code=403)
            try:
                return await run_in_threadpool(self._response, make, request)
            except BadInput as error:
                return JSONResponse({"error": str(error)}, status_code=404)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                return JSONResponse({"error": f"{STRANGE} ({type(error).__name__}: {error})"}, status_code=404)

        return answer

    def _response(self, make: Callable[[Request], Any], request: Request) -> Response:
        """The answer, with how long the page waits before it asks again; a file is answered as it is."""
        began, version = time.thread_time(), self.index.version
        found = make(request)
        if isinstance(found, Response):
            return found
        text = json.dumps(finite(found) | {"version": version}, allow_nan=False, default=str)
        pause = min(SHARE * (time.thread_time() - began), LONGEST)
        return Response(f'{text[:-1]}, "pause": {pause:.3f}}}', media_type="application/json")

    async def page(self, request: Request) -> Response:
        text = (files("fedstale.view.live") / "page.html").read_text()
        return Response(text, media_type="text/html")

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "plotly.js":  # with the version in the address it may be kept
            return Response(library(), media_type=TYPES["js"], headers={"cache-control": "private, max-age=86400"})
        if name not in STATIC:
            return PlainTextResponse("not found", status_code=404)
        text = (files(STATIC[name]) / name).read_text()
        return Response(text, media_type=TYPES[name.rpartition(".")[2]])

    async def events(self, request: Request) -> Response:
        """Server-sent events: the version of the store whenever it has changed, and a comment now and then."""

        async def stream() -> AsyncIterator[str]:
            last, beat = -1, 0.0
            while not self.watcher.over.is_set():
                self.watcher.seen = time.monotonic()
                if self.index.version != last or not self.index.whole:
                    last = self.index.version
                    now = {"version": last, "about": self.about, "control": self.control is not None}
                    now |= {"arena": bool(contests(self.index.stores))}
                    yield f"data: {json.dumps(now)}\n\n"
                elif time.monotonic() - beat > 5:
                    beat = time.monotonic()
                    yield ": still here\n\n"
                await asyncio.sleep(0.2)

        return StreamingResponse(stream(), media_type="text/event-stream")

    def _view(self, request: Request) -> axes.View:
        asked = request.query_params
        return axes.view(asked.get("x", "round"), asked.get("smooth", "0"))

    def _experiment(self, request: Request) -> dict[str, Any]:
        key = request.path_params["key"]
        with self.lock:
            found = self.experiments.show(key, self._view(request))
        failed = self.control.trouble(self.index.experiments().get(key, [])) if self.control else []
        return found | {"notes": found["notes"] + failed}

    def _compare(self, request: Request) -> dict[str, Any]:
        asked = request.query_params
        return self.experiments.compare(request.path_params["key"], asked.get("a", ""), asked.get("b", ""))

    def _csv(self, request: Request) -> Response:
        """The numbers of a figure."""
        key, figure = request.path_params["key"], request.path_params["figure"]
        kept = {"content-disposition": f'attachment; filename="figure-{figure + 1}.csv"'}
        text = self.experiments.numbers(key, figure, self._view(request))
        return Response(text, media_type="text/csv", headers=kept)

    def _run(self, request: Request) -> dict[str, Any]:
        """One run that the index knows; no other path is ever opened."""
        row = self._row(request)
        with self.lock:
            found = self.experiments.run(row, self._view(request))
        return found | {"notes": found["notes"] + (self.control.trouble([row]) if self.control else [])}

    def _row(self, request: Request) -> Row:
        asked = (request.query_params.get("store", ""), request.query_params.get("name", ""))
        row = next((r for r in self.index.all() if (str(r.folder.path.parent), r.name) == asked), None)
        if row is None:
            raise BadInput("this run is not in the store any more")
        return row

    def _act(self, request: Request) -> dict[str, Any]:
        """Stop or resume the runs of an experiment, or one run."""
        assert self.control
        key, action = request.query_params.get("key", ""), request.path_params["action"]
        rows = self.index.experiments().get(key, []) if key else [self._row(request)]
        actions = {"stop": self.control.stop, "resume": self.control.resume}
        return {"said": actions[known(action, actions, "the action")](rows)}


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


def serve(page: Page, sock: socket.socket) -> None:
    """Answer requests until Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(page.app(), log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[sock])

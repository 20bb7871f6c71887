"""A mirror on loopback that misbehaves as told, and the real files where there are any."""

import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

Plain = tuple[int, bytes, int]  # status, body, announced length
Answer = Plain | Callable[[BaseHTTPRequestHandler], None]


class Mirror(ThreadingHTTPServer):
    """Gives its answers one by one, and the last one for ever."""

    daemon_threads = True

    def __init__(self, answers: tuple[Answer, ...]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked, self.lock = answers, 0, threading.Lock()

    def next(self) -> Answer:
        with self.lock:
            self.asked += 1
            return self.answers[min(self.asked, len(self.answers)) - 1]


class Handler(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        answer = self.server.next()
        if callable(answer):
            return answer(self)
        status, body, announced = answer
        self.send_response(status)
        self.send_header("Content-Length", str(announced))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[str, Mirror]]]:
    """`url, server = mirror((status, body, announced length), …)`."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = []

    def start(*answers: Answer) -> tuple[str, Mirror]:
        server = Mirror(answers)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}/file", server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture
def real_files() -> None:
    if not os.environ.get("FEDSTALE_DATA"):
        pytest.skip("needs real files: set FEDSTALE_DATA to the folder that holds them")

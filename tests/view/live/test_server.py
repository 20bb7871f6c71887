"""The server of the page: what it answers, what it refuses, and that nothing leaves or enters by it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from fedstale.core import BadInput

pytest.importorskip("starlette", reason="the server needs the extra `ui`")
pytest.importorskip("plotly", reason="the server needs the extra `ui`")
uvicorn = pytest.importorskip("uvicorn", reason="the server needs the extra `ui`")

from fedstale.view.live.control import Control  # noqa: E402
from fedstale.view.live.index import Index  # noqa: E402
from fedstale.view.live.server import STATIC, Page, listen  # noqa: E402
from tests.view.live.stores import computed  # noqa: E402


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("server") / "runs"
    computed(folder)
    return folder


@pytest.fixture(scope="module")
def port(store: Path) -> Iterator[int]:
    with served(Page(Index([store]), "here")) as port:
        yield port


@contextmanager
def served(page: Page) -> Iterator[int]:
    sock = listen(0)
    server = uvicorn.Server(uvicorn.Config(page.app(), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not (server.started and page.index.whole):
        time.sleep(0.02)
    yield sock.getsockname()[1]
    server.should_exit = True
    thread.join(120)
    sock.close()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request(method, path, headers=headers)
        with connection.getresponse() as answer:
            return answer.status, answer.headers, answer.read()


def test_every_answer_has_the_policy(port: int) -> None:
    for path in ("/", "/api/runs", "/nowhere", *(f"/static/{name}" for name in STATIC)):
        _, headers, _ = ask(port, path)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "script-src 'self';" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_lists_experiments_runs_and_csv_are_answered(port: int) -> None:
    status, _, body = ask(port, "/api/experiments")
    (row,) = json.loads(body)["rows"]
    assert (status, row["runs"]) == (200, 6)
    found = json.loads(ask(port, f"/api/experiment/{row['key']}?x=bytes&smooth=0.5")[2])
    assert len(found["figures"]) >= 5
    status, headers, body = ask(port, f"/api/experiment/{row['key']}/0.csv")
    assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert body.startswith(b"series,round,test accuracy")
    (run, *_) = json.loads(ask(port, "/api/runs")[2])["rows"]
    found = json.loads(ask(port, f"/api/run?store={run['store']}&name={run['name']}")[2])
    assert (found["title"], found["experiment"]) == (f"{run['label']}, seed {run['seed']}", row["key"])
    assert found["figures"]["f0"]["curves"]
    assert found["below"].index(">seed<") < found["below"].index(">rounds<")  # what differs comes first


@pytest.mark.parametrize("path", [
    "/api/runs?state=happy", "/api/runs?page=x", "/api/experiment/nobody", "/api/experiment/nobody/0.csv",
    "/api/experiment/nobody/compare?a=1", "/api/run?store=/etc&name=passwd", "/api/run?name=..%2F..",
    "/static/..%2Fserver.py", "/static/server.py", "/api/nothing", "/%2e%2e/etc/passwd",
])  # fmt: skip
def test_nonsense_is_not_found(port: int, path: str) -> None:
    status, _, body = ask(port, path)
    assert status == 404
    assert b"Traceback" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(port: int, method: str) -> None:
    for path in ("/", "/api/runs", "/api/events", "/api/experiment/x"):
        assert ask(port, path, method)[0] == 405
    assert ask(port, "/api/control/stop", method)[0] == 404


def test_with_control_only_the_token_opens_what_is_not_read(store: Path) -> None:
    control = Control()
    with served(Page(Index([store]), "here", control)) as port:
        (row,) = json.loads(ask(port, "/api/experiments")[2])["rows"]
        path, token = f"/api/control/stop?key={row['key']}", {"x-fedstale-token": control.token}
        for headers in ({}, {"x-fedstale-token": ""}, {"x-fedstale-token": control.token[:-1]}):
            status, _, body = ask(port, path, "POST", **headers)
            assert (status, "the token is not that of this server" in json.loads(body)["error"]) == (403, True)
        assert ask(port, path, "GET", **token)[0] == 405
        assert control.token.encode() not in ask(port, "/")[2]
        status, _, body = ask(port, path, "POST", **token)
        assert (status, json.loads(body)["error"]) == (404, "there is no running run to stop")
        for nonsense in ("burn?key=1", "stop", "stop?key=nobody", "resume?store=/etc&name=passwd"):
            assert ask(port, f"/api/control/{nonsense}", "POST", **token)[0] == 404


def test_another_host_is_refused(port: int) -> None:
    assert ask(port, "/api/runs", Host="evil.example")[0] == 400
    assert ask(port, "/api/runs", Host=f"localhost:{port}")[0] == 200


def test_events_begin_with_the_version_of_the_store(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=120) as s:
        s.sendall(b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        text = b""
        while b"\ndata: " not in text or not text.endswith(b"\n\n\r\n"):
            text += s.recv(4096)
    assert b"text/event-stream" in text
    assert json.loads(text.split(b"\ndata: ")[1].split(b"\n")[0])["version"] == 6


def test_it_listens_on_the_loopback_and_a_port_in_use_is_a_sentence() -> None:
    with listen(0) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"
        with pytest.raises(BadInput, match=r"cannot be used .*--port names another"):
            listen(sock.getsockname()[1])

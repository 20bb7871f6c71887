"""Connections to the link that make no progress, with a transport and a clock of the test's own."""

import pytest

pytest.importorskip("httptools", reason="httptools comes with flwr, which is not installed")

from uvicorn.config import Config
from uvicorn.protocols.http import auto
from uvicorn.server import ServerState

from fedstale.flower.federation.ops.superlink import HEADERS, KEPT, QUIET, SLOWEST, Hurried, hurry


class Wire:
    """A transport that remembers whether it was closed."""

    closed = False

    def abort(self):
        self.closed = True

    close = abort

    def get_extra_info(self, name, default=None):
        return default

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        pass

    resume_reading = write = lambda self, *_: None


class Clock:
    """An event loop whose time passes when the test says so; tasks are never run."""

    def __init__(self):
        self.now, self.timers = 0.0, []

    def call_later(self, seconds, do):
        timer = Timer(self.now + seconds, do)
        self.timers.append(timer)
        return timer

    def create_task(self, coroutine):
        coroutine.close()
        return Task()

    def passes(self, seconds):
        self.now += seconds
        for timer in [t for t in self.timers if not t.cancelled and t.at <= self.now]:
            timer.do()


class Timer:
    cancelled = False

    def __init__(self, at, do):
        self.at, self.do = at, do

    def cancel(self):
        self.cancelled = True


class Task:
    def add_done_callback(self, done):
        pass


@pytest.fixture
def opened():
    clock, wire = Clock(), Wire()
    config = Config(lambda *_: None, lifespan="off", log_config=None, ws="none")
    connection = Hurried(config, ServerState(), {}, _loop=clock)
    connection.connection_made(wire)
    return connection, clock, wire


def request(size):
    return f"POST /v1/fleet/x HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()


def test_a_connection_without_a_request_is_closed(opened):
    _, clock, wire = opened
    clock.passes(QUIET - 1)
    assert not wire.closed
    clock.passes(1)
    assert wire.closed


def test_headers_that_never_end_are_not_waited_for(opened):
    connection, clock, wire = opened
    connection.data_received(b"POST / HTTP/1.1\r\nHo")
    for _ in range(int(QUIET) + 1):
        clock.passes(1)
        if not wire.closed:
            connection.data_received(b"o")
    assert wire.closed


def test_a_body_may_take_the_time_of_its_size(opened):
    connection, clock, wire = opened
    connection.data_received(request(100 * SLOWEST))
    clock.passes(QUIET + 99)
    assert not wire.closed
    clock.passes(1)
    assert wire.closed


def test_a_request_that_is_whole_may_take_its_time(opened):
    """The link answers when it can; afterwards uvicorn closes connections without another request itself."""
    connection, clock, wire = opened
    connection.data_received(request(3) + b"abc")
    clock.passes(10 * QUIET)
    assert not wire.closed


@pytest.mark.parametrize(("start", "seconds"), [(request(3) + b"abc", KEPT), (b"GET /health HTTP/1.1\r\n\r\n", 5)])
def test_the_connection_of_a_client_stays_open_from_poll_to_poll(opened, start, seconds):
    connection, clock, wire = opened
    connection.data_received(start)
    connection.on_response_complete()
    clock.passes(seconds - 1)
    assert not wire.closed
    clock.passes(1)
    assert wire.closed


def test_large_headers_are_not_kept(opened):
    connection, _, wire = opened
    connection.data_received(b"GET / HTTP/1.1\r\nX: ")
    for _ in range(3):
        connection.data_received(b"a" * (HEADERS // 2))
    assert not wire.closed
    connection.data_received(b"a")
    assert wire.closed


def test_a_large_body_is_none_of_this(opened):
    connection, _, wire = opened
    connection.data_received(request(4 * HEADERS))
    for _ in range(4):
        connection.data_received(b"a" * HEADERS)
    assert not wire.closed


def test_a_closed_connection_leaves_no_timer(opened):
    connection, clock, _ = opened
    connection.connection_lost(None)
    assert all(timer.cancelled for timer in clock.timers)


def test_the_link_uses_it(monkeypatch):
    monkeypatch.setattr(auto, "AutoHTTPProtocol", None)
    hurry()
    config = Config(lambda *_: None, lifespan="off", log_config=None, ws="none")
    config.load()
    assert config.http_protocol_class is Hurried

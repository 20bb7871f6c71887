"""The short way through the link; test_flower_security.py tries the same calls on a real one."""

import asyncio
import threading
from functools import partial

import pytest

pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` runs these in their own environment")

import anyio

from fedstale.flower.federation.ops import express


def answered(path, body=b"", method="POST"):
    """The status and the body of the answer, and whether the request went the long way."""
    passed, sent = [], []

    async def app(scope, receive, send):
        passed.append(scope["path"])

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(event):
        sent.append(event)

    scope = {"type": "http", "path": path, "method": method, "headers": [], "query_string": b"", "state": {}}
    asyncio.run(express.Express(app, express.Queue())(scope, receive, send))
    return (sent[0]["status"] if sent else None), bool(passed)


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v1/fleet/activate-node", "POST"), ("/v1/fleet/get-fab", "POST"), ("/v1/control/start-run", "POST"),
        ("/v1/runtime/acquire-task", "POST"), ("/v1/fleet/pull-object", "GET"), ("/health", "GET"),
    ],
)  # fmt: skip
def test_what_comes_rarely_goes_the_long_way(path, method):
    assert answered(path, method=method) == (None, True)


@pytest.mark.parametrize("path", sorted(express.FLEETS))
def test_a_client_without_a_signature_and_garbage_are_refused_as_by_flower(path):
    assert answered(path) == (401, False)
    assert answered(path, b"\xff\xff") == (400, False)


def test_every_short_way_is_one_of_flowers():
    assert {("POST", path) for path in express.OFTEN} <= set(express.adapter.PROTOBUF_REQUEST_TYPES)


def test_the_link_is_busy_while_clients_wait_for_a_thread(monkeypatch):
    monkeypatch.setattr(express, "WAITING", 1)
    held, seen = threading.Event(), []

    async def asked(queue):
        async with anyio.create_task_group() as group:
            for _ in range(express.AT_ONCE + 1):
                group.start_soon(partial(anyio.to_thread.run_sync, held.wait, limiter=queue.clients))
            await anyio.wait_all_tasks_blocked()
            seen.append(queue.busy())
            held.set()
        seen.append(queue.busy())

    anyio.run(asked, express.Queue())
    assert seen == [True, False]

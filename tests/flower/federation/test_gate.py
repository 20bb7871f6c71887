"""What the link lets in: clients to the fleet's interface, and commands from this machine with the token."""

import asyncio
import stat
from base64 import b64encode

import pytest

from fedstale.flower.federation.ops import gate as gate_module
from fedstale.flower.federation.ops.gate import (
    FORM,
    LARGEST,
    MOST,
    STORE,
    UNPROVEN,
    Gate,
    control_token,
    note_reply_limit,
    reply_limit,
)

HERE, ELSEWHERE = ("127.0.0.1", 4321), ("192.0.2.7", 4321)


def asked(path, client=HERE, server=("127.0.0.1", 9100), **headers):
    """The status with which a request is answered, and whether it reached the link."""
    reached, sent = [], []

    async def link(scope, receive, send):
        reached.append(scope)

    async def send(event):
        sent.append(event)

    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "client": client, "server": server, "headers": fields}
    asyncio.run(Gate(link, lambda: "secret")(scope, None, send))
    assert bool(reached) != bool(sent)
    return sent[0]["status"] if sent else 200


RUN, TASK, FLEET = "/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/pull-messages"


@pytest.mark.parametrize("client", [ELSEWHERE, ("::ffff:192.0.2.7", 1), ("unix", 0), None])
def test_other_machines_reach_the_fleet_only(client):
    assert asked(FLEET, client) == 200
    assert asked("/health", client) == 200
    assert asked(TASK, client) == 403
    assert asked(RUN, client, authorization="Bearer secret") == 403


@pytest.mark.parametrize("client", [HERE, ("::1", 1), ("::ffff:127.0.0.1", 1), ("127.0.0.9", 1)])
def test_this_machine_commands_with_the_token_only(client):
    assert asked(TASK, client) == 200
    assert asked(RUN, client) == 403
    assert asked(RUN, client, authorization="Bearer wrong") == 403
    assert asked(RUN, client, authorization="secret") == 403
    assert asked(RUN, client, authorization="Bearer secret") == 200


def test_a_machine_that_calls_its_own_address_is_this_machine():
    assert asked(TASK, client=("192.0.2.7", 1), server=("192.0.2.7", 9100)) == 200
    assert asked(TASK, client=("192.0.2.7", 1), server=("192.0.2.8", 9100)) == 403


def test_a_key_that_is_not_in_the_roster_reaches_nothing_of_the_fleet():
    gate = Gate(None, lambda: "secret", member=lambda key: key == b"known")
    for path in (FLEET, STORE, "/v1/fleet/activate-node", "/v1/fleet/send-node-heartbeat"):
        for key, due in ((b"known", None), (b"removed", 412), (b"", 412)):
            fields = [(b"flwr-public-key", b64encode(key)), (b"content-length", b"9")]
            found = gate.refusal({"path": path, "client": ELSEWHERE, "headers": fields})
            assert (found and found[0]) == due
    assert gate.refusal({"path": "/health", "client": ELSEWHERE, "headers": []}) is None


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/v1", "/v1/responses", "/V1/CONTROL/x", ""])
def test_nothing_else_is_served(path):
    assert asked(path) == 404


@pytest.mark.parametrize(("path", "most"), [(FLEET, FORM), (STORE, MOST), (TASK, MOST)])
def test_a_large_request_is_refused_unread(path, most):
    assert asked(path, content_length=str(most)) == 200
    assert asked(path, content_length=str(most + 1)) == 413
    assert asked(path, content_length="-1") == 411
    assert asked(path, transfer_encoding="chunked") == 411


def test_a_client_proves_its_key_before_much_is_read():
    """Otherwise many requests at once, each below the limit, would fill the memory of the link."""

    def of_strangers(path, size):
        headers = [(b"content-length", str(size).encode())]
        gate = Gate(None, lambda: "secret", limit=lambda: MOST, proven=lambda headers: False)
        found = gate.refusal({"path": path, "client": ELSEWHERE, "headers": headers})
        return found[0] if found else 200

    assert of_strangers(FLEET, UNPROVEN) == 200  # the link says itself why it refuses
    assert of_strangers(FLEET, UNPROVEN + 1) == 401
    assert of_strangers(STORE, 1) == 401


def test_what_is_on_its_way_counts_too():
    gate, over = Gate(None, lambda: "secret", limit=lambda: 100), []

    async def link(scope, receive, send):
        over.append(gate.refusal(scope))  # another request of the same client, at the same time
        raise ConnectionError

    gate.app = link
    headers = [(b"content-length", b"60"), (b"flwr-public-key", b"YQ==")]
    scope = {"type": "http", "path": STORE, "client": ELSEWHERE, "headers": headers}
    for _ in range(2):
        with pytest.raises(ConnectionError):
            asyncio.run(gate(scope, None, None))
    assert [why[0] for why in over] == [413, 413]  # what was not stored does not count any more


def test_websockets_are_closed():
    sent = []

    async def send(event):
        sent.append(event["type"])

    asyncio.run(Gate(None, lambda: "secret")({"type": "websocket", "path": FLEET}, None, send))
    assert sent == ["websocket.close"]


def test_the_token_is_made_once_and_for_its_owner(tmp_path):
    token = control_token(tmp_path)
    assert len(token) == 64
    assert control_token(tmp_path) == token
    assert stat.S_IMODE((tmp_path / "keys" / "control.token").stat().st_mode) == 0o600
    assert control_token(tmp_path / "other") != token


def test_startup_and_shutdown_pass():
    seen = []

    async def link(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(Gate(link, lambda: "secret")({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


def test_a_client_stores_one_answer_from_one_order_to_the_next():
    """What is refused or not authenticated does not count, and other clients are not concerned."""
    statuses, length = [], [0]

    async def link(scope, receive, send):
        await send({"type": "http.response.start", "status": statuses[-1], "headers": []})
        await send({"type": "http.response.body", "body": bytes(length[0])})

    gate = Gate(link, lambda: "secret", limit=lambda: 100)

    def call(path, size, key=b"YQ==", status=200, answer=0):
        statuses.append(status)
        length[0], sent = answer, []

        async def send(event):
            sent.append(event)

        headers = [(b"content-length", str(size).encode()), (b"flwr-public-key", key)]
        scope = {"type": "http", "path": path, "client": ELSEWHERE, "server": HERE, "headers": headers}
        asyncio.run(gate(scope, None, send))
        return sent[0]["status"]

    store, orders = "/v1/fleet/push-object", "/v1/fleet/pull-messages"
    assert call(store, 60, status=401) == 401
    assert call(store, 60) == 200
    assert call(store, 41) == 413
    assert call(store, 40) == 200
    assert call(store, 1) == 413
    assert call(store, 1, key=b"YR==") == 413  # the same key, encoded in another way
    assert call(store, 60, key=b"Yg==") == 200
    call(orders, 10, answer=20)  # no order
    assert call(store, 1) == 413
    gate.pushes += 1  # the server sends an order
    call(orders, 10, answer=500)
    assert call(store, 100) == 200


def test_the_limit_of_an_answer_follows_the_size_of_the_model(tmp_path):
    assert reply_limit(tmp_path) == LARGEST
    note_reply_limit(tmp_path, 80 << 20)
    assert 80 << 20 < reply_limit(tmp_path) < 100 << 20
    (tmp_path / "flwr" / "reply.limit").write_text("much")
    assert reply_limit(tmp_path) == LARGEST


def test_a_poll_without_news_is_answered_at_the_gate(monkeypatch):
    """Flower is asked for another client, without a proof, after a push, after an order, and after a while."""
    reached, size, proofs, clock = [], [0], [True], [0.0]
    monkeypatch.setattr(gate_module.time, "monotonic", lambda: clock[0])

    async def link(scope, receive, send):
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"x")]})
        await send({"type": "http.response.body", "body": bytes(size[0])})

    gate = Gate(link, lambda: "secret", proven=lambda headers: proofs[0], clients=lambda: 700)

    def answered(path=FLEET, key=b"YQ==", client=HERE):
        """What is sent, and whether the link was asked for it."""
        sent, before = [], len(reached)

        async def send(event):
            sent.append(event)

        headers = [(b"content-length", b"9")] + ([(b"flwr-public-key", key)] if key else [])
        asyncio.run(gate({"type": "http", "path": path, "client": client, "headers": headers}, None, send))
        return sent, len(reached) > before

    first, asked_ = answered()
    assert asked_
    assert first[0]["headers"] == [(b"content-type", b"x"), (b"fedstale-clients", b"700")]
    assert answered() == (first, False)
    assert answered(key=b"Yg==")[1]
    assert [answered(key=b"")[1] for _ in range(2)] == [True, True]  # they may be different clients
    proofs[0] = False
    assert answered()[1]
    proofs[0] = True
    assert not answered()[1]
    answered("/v1/runtime/push-messages")
    assert [answered()[1] for _ in range(2)] == [True, False]
    clock[0] += 1.01 * gate_module.SURE
    size[0] = 500
    assert [answered()[1] for _ in range(3)] == [True, True, True]


def test_an_order_that_is_pushed_while_a_poll_is_under_way_is_not_missed():
    scope = {"type": "http", "client": HERE, "headers": [(b"content-length", b"9"), (b"flwr-public-key", b"YQ==")]}
    reached = []

    async def ignored(event):
        pass

    async def link(scope, receive, send):
        reached.append(scope["path"])
        if reached == [FLEET]:  # Flower has looked, and the push comes before the answer is sent
            await gate(scope | {"path": "/v1/runtime/push-messages"}, None, ignored)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    gate = Gate(link, lambda: "secret")
    for _ in range(3):
        asyncio.run(gate(scope | {"path": FLEET}, None, ignored))
    assert [path for path in reached if path == FLEET] == [FLEET, FLEET]


def test_an_order_waits_while_the_link_is_busy_with_other_clients():
    """The client asks again; one whose first poll it is goes to Flower, which alone can tell it anything."""
    reached, busy = [], [True]

    async def ignored(event):
        pass

    async def link(scope, receive, send):
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def ask(path):
        headers = [(b"content-length", b"9"), (b"flwr-public-key", b"YQ==")]
        asyncio.run(gate({"type": "http", "path": path, "client": HERE, "headers": headers}, None, ignored))
        return reached.count(FLEET)

    gate = Gate(link, lambda: "secret", busy=lambda: busy[0])
    assert ask(FLEET) == 1
    ask("/v1/runtime/push-messages")
    assert ask(FLEET) == 1
    busy[0] = False
    assert ask(FLEET) == 2

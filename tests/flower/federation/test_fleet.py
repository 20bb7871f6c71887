"""A client's connection to a link that is played by the test; test_flower_security.py has a real one."""

import datetime
import threading
from base64 import b64encode
from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` runs these in their own environment")

import httpx
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import sign_message

from fedstale.flower.federation import adapter
from fedstale.flower.federation.client import fleet
from fedstale.flower.federation.client.notes import Notes
from fedstale.flower.federation.ops import superlink
from fedstale.flower.federation.ops.keys import make_node_key
from fedstale.flower.federation.state import roster

NOTHING = SimpleNamespace(messages_list=[])
POOL = SimpleNamespace(_transport=SimpleNamespace(_pool=SimpleNamespace()))


def status(code):
    request = httpx.Request("POST", "https://a.org")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(code, request=request, text="why"))


@pytest.fixture
def connected(tmp_path, monkeypatch):
    """A client whose link answers PullMessages with these answers, one after the other."""
    monkeypatch.setattr(fleet, "BEAT", 3600.0)
    make_node_key(tmp_path / "key")

    def made(*answers, **methods):
        left = iter(answers)

        def pull(request):
            answer = next(left)
            if isinstance(answer, Exception):
                raise answer
            return answer

        link = SimpleNamespace(PullMessages=pull, _client=POOL, **methods)
        monkeypatch.setattr(fleet.adapter.FleetHttpClient, "from_server_address", lambda *_: link)
        return fleet.Fleet("a.org:9100", None, tmp_path / "key", Notes(tmp_path / "notes"))

    return made


def test_a_call_is_repeated_with_growing_pauses_until_the_link_is_back(connected, monkeypatch):
    pauses = []
    monkeypatch.setattr(fleet.random, "uniform", lambda low, high: 1.0)
    monkeypatch.setattr(fleet.time, "sleep", lambda seconds: pauses.append((seconds, client.notes.state)))
    client = connected(*[httpx.ConnectError("gone")] * 5, status(503), NOTHING)
    assert client.receive() is None
    assert [seconds for seconds, _ in pauses] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert "a.org:9100 cannot be reached (gone)" in pauses[0][1]
    assert "it answers 503" in pauses[-1][1]
    assert client.notes.state == "signing in"


@pytest.mark.parametrize(
    ("code", "kind"), [(401, fleet.Refused), (412, fleet.Refused), (403, fleet.Ended), (404, fleet.Ended)]
)
def test_what_another_try_does_not_change_is_not_repeated(connected, code, kind):
    with pytest.raises(kind):
        connected(status(code)).receive()


def test_an_order_that_is_gone_from_the_link_is_over(connected):
    gone = SimpleNamespace(object_found=False, object_available=False)
    with pytest.raises(fleet.Ended, match="could not be found"):
        connected(PullObject=lambda request: gone).with_content(1, ObjectTree(object_id="a" * 64))


def test_heartbeats_go_on_while_a_client_trains_and_after_one_was_lost(connected, monkeypatch):
    beats, enough = [], threading.Event()

    def beat(request):
        beats.append(request.node.node_id)
        if len(beats) == 3:
            enough.set()
        if len(beats) == 2:
            raise httpx.ConnectError("gone")

    monkeypatch.setattr(fleet, "BEAT", 0.01)
    client = connected(SendNodeHeartbeat=beat, DeactivateNode=lambda request: None, close=lambda: None)
    client.node = Node(node_id=5)
    assert enough.wait(600)  # this thread does something else meanwhile
    client.close()
    assert beats[:3] == [5, 5, 5]


def test_clients_of_a_large_federation_pause_longer_and_not_all_alike(monkeypatch):
    crowd, drawn = fleet.Crowd(), iter([0.8, 1.2] * 10)
    monkeypatch.setattr(fleet.random, "uniform", lambda low, high: next(drawn))

    def told(headers):
        crowd.intercept(None, lambda context: httpx.Response(200, headers=headers))
        return crowd.pause(10.0), crowd.pause(10.0)

    assert told({}) == (8.0, 12.0)
    assert told({"fedstale-clients": "200"}) == (8.0, 12.0)
    assert crowd.pause(5.0, fleet.LESS) == 8.0
    assert crowd.pause(5.0, fleet.LESS) == 12.0
    assert told({"fedstale-clients": "1000"}) == (40.0, 60.0)
    assert told({}) == (40.0, 60.0)  # other answers do not say it
    assert told({"fedstale-clients": "9" * 40}) == (160.0, 240.0)  # nobody can silence a client
    assert told({"fedstale-clients": "-1"}) == (160.0, 240.0)


def test_a_client_of_a_large_federation_waits_longer_for_an_answer_and_needs_one_connection(connected, monkeypatch):
    monkeypatch.setattr(POOL, "timeout", 0.0, raising=False)
    client, lanes = connected(NOTHING, NOTHING), []
    client.receive()
    assert POOL.timeout == fleet.TIMEOUT
    lanes.append(client._lanes())
    client.crowd.clients = 1000
    client.receive()
    assert POOL.timeout == 5 * fleet.TIMEOUT
    assert [*lanes, client._lanes()] == [fleet.LANES, 1]


def test_the_link_is_told_of_longer_pauses_between_heartbeats(connected, monkeypatch):
    monkeypatch.setattr(fleet, "BEAT", 0.0)
    beats, seen = [], threading.Event()

    def beat(request):
        beats.append(request.heartbeat_interval)
        seen.set()

    client = connected(SendNodeHeartbeat=beat)
    client.crowd.clients = 1000
    client.node = Node(node_id=5)
    assert seen.wait(600)
    client._over.set()
    assert beats[0] == 5 * fleet.INTERVAL


def test_who_has_signed_a_request_is_known_before_it_is_read(tmp_path, monkeypatch):
    now = datetime.datetime.now(datetime.UTC)
    still = type("Still", (datetime.datetime,), {"now": staticmethod(lambda zone: now)})
    monkeypatch.setattr(superlink, "datetime", SimpleNamespace(datetime=still, UTC=datetime.UTC))
    own, other, stranger = (adapter.generate_key_pairs() for _ in range(3))
    hashes = [roster.key_hash(adapter.public_key_to_bytes(public)) for _, public in (own, other)]
    roster.save(tmp_path / "r.json", roster.Roster(1, 2, tuple(map(roster.Member, range(2), hashes))))
    proven = partial(superlink.proven, superlink.Members(tmp_path / "r.json"))

    def headers(private, public, age=0.0):
        when = (now - datetime.timedelta(seconds=age)).isoformat().encode()
        told = {b"public-key": adapter.public_key_to_bytes(public), b"signature": sign_message(private, when)}
        return {b"flwr-timestamp": when} | {b"flwr-" + name: b64encode(value) for name, value in told.items()}

    assert proven(headers(*own))
    assert proven(headers(*own, age=280))
    assert not proven(headers(*own, age=310))
    assert not proven(headers(*own, age=-10))
    assert not proven(headers(other[0], own[1]))
    assert not proven(headers(*stranger))
    for name in headers(*own):
        assert not proven(headers(*own) | {name: b"?"})
        assert not proven({k: v for k, v in headers(*own).items() if k != name})
    (tmp_path / "r.json").unlink()
    assert not proven(headers(*own))

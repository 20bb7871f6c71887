"""A client's connection to a link that is played by the test; test_flower_security.py has a real one."""

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` runs these in their own environment")

import httpx
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node

from fedstale.flower.federation.client import fleet
from fedstale.flower.federation.client.notes import Notes
from fedstale.flower.federation.ops.keys import make_node_key

NOTHING = SimpleNamespace(messages_list=[])


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

        link = SimpleNamespace(PullMessages=pull, _client=SimpleNamespace(), **methods)
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

"""All that is private of Flower is in adapter.py, and it is where the installed Flower has it."""

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` runs these in their own environment")

from flwr.app import Message, RecordDict

from fedstale.flower.federation import adapter

ROOT = Path(__file__).parents[3]
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}


@pytest.mark.parametrize("name", sorted(adapter.HOMES))
def test_flower_has_what_a_federation_needs(name):
    assert getattr(adapter, name) is not None


def test_a_name_that_flower_has_moved_is_told_with_the_versions_that_have_it(monkeypatch):
    for home in (("flwr.gone", "Grid"), ("flwr.proto.node_pb2", "Nodes")):
        monkeypatch.setitem(adapter.HOMES, "Node", home)
        sentence = (
            rf"^{'.'.join(home)} of Flower, which a federation needs, is not there: install flwr>=1.41,<1.43, got"
        )
        with pytest.raises(ImportError, match=sentence):
            _ = adapter.Node


def test_no_other_module_imports_what_is_private_of_flower():
    pattern = re.compile(r"^\s*(?:from|import) (flwr[\w.]*)", re.MULTILINE)
    found = {path: set(pattern.findall(path.read_text())) for path in (ROOT / "src").rglob("*.py")}
    assert {path.name: sorted(names - PUBLIC) for path, names in found.items() if names - PUBLIC} == {}


def test_the_package_asks_for_the_versions_that_the_adapter_supports():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'flower = ["{adapter.SUPPORTED}"]' in text
    assert f'simulation = ["{adapter.SUPPORTED.replace("flwr", "flwr[simulation]")}"]' in text


def test_private_attributes_of_flowers_objects_are_there():
    from flwr.superlink.grid.http_grid import HttpGrid

    grid = HttpGrid("127.0.0.1:1", insecure=True, token="none")
    assert grid._retry_invoker.max_time != 7.0
    adapter.give_up_after(grid, 7.0)
    assert isinstance(HttpGrid._runtime_client, property)
    assert adapter.extensions.Middleware is not None
    assert adapter.extensions.get_middleware() is not None
    client = adapter.FleetHttpClient.from_server_address("127.0.0.1:1", True, None, [])
    adapter.time_out_after(client, 7.0)
    assert client._client.timeout.connect == 7.0
    assert client._client._transport._pool._keepalive_expiry != 70.0
    adapter.stay_connected(client, 70.0)
    client.close()
    adapter.TaskIdentity.run_id = adapter.TaskIdentity.node_id = adapter.TaskIdentity.task_id = 1
    message = Message(RecordDict(), 1, "train")
    assert message.metadata.message_id == ""
    adapter.set_message_id(message, "m1")
    assert message.metadata.message_id == "m1"

"""A node's name is the same after a restart wherever Flower makes that possible."""

import logging
import random
from types import SimpleNamespace

import pytest
from flwr.proto.node_pb2 import NodeInfo

from fedstale.flower.population import CHANGED, SIMULATED, Identities


def grid(*nodes):
    return SimpleNamespace(get_nodes=lambda: nodes)


def simulated(node, second):
    return NodeInfo(
        node_id=node, registered_at=f"2026-01-01T00:00:{second:09.6f}+00:00", heartbeat_interval=SIMULATED,
        public_key=random.randbytes(32),
    )  # fmt: skip


def test_simulated_nodes_are_their_partitions_by_order_of_registration():
    nodes = [simulated(node, k / 1000) for k, node in enumerate([77, 5, 60, *range(100, 120)])]
    names = Identities().of(grid(*reversed(nodes)), [60])
    assert [names[n.node_id] for n in nodes] == [f"partition-{k}" for k in range(23)]
    assert [*names.values()] == [f"partition-{k}" for k in range(23)]  # rows are in the order of partitions


def test_a_supernode_is_known_by_its_key():
    first, second = (Identities().of(grid(NodeInfo(node_id=i, public_key=b"a")), [i])[i] for i in (3, 4))
    assert first == second
    assert first.startswith("key-")
    assert Identities().of(grid(NodeInfo(node_id=3, public_key=b"b")), [])[3] != first


def test_a_node_without_a_key_is_its_id_and_names_are_never_given_twice():
    names = Identities()
    assert names.of(grid(NodeInfo(node_id=9)), [10]) == {9: "node-9", 10: "node-10"}
    assert names.of(grid(simulated(1, 0)), []) == {1: "partition-0"}
    assert names.of(grid(simulated(2, 1)), []) == {
        2: "node-2"
    }  # a grid that hides nodes: the place is no partition
    assert names.of(grid(simulated(1, 0)), []) == {1: "partition-0"}


@pytest.mark.parametrize(
    ("resumed", "before", "now", "what"),
    [
        (True, "ab", "cd", "none of the 2 clients of the saved state is online, but 2 others are"),
        (True, "ab", "bcd", None),
        (True, "ab", "", None),
        (False, "ab", "ac", "1 clients are new, and 1 clients are not online any more"),
        (False, "ab", "abc", None),
        (False, "abc", "a", None),
    ],
)
def test_other_names_than_before_are_warned_of_once(resumed, before, now, what, monkeypatch):
    told = []
    monkeypatch.setattr(logging.getLogger("flwr"), "warning", lambda *args: told.append(args))
    names = Identities(resumed)
    names.compare(before, {*now})
    names.compare(before, {*now})
    assert told == ([(CHANGED, what)] if what else [])

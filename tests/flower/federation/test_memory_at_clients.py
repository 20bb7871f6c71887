"""A federation whose clients keep their own memories, in their folders: the server has sums only."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedstale import simulate
from fedstale.core import BadInput, Local
from fedstale.engines import Serial
from fedstale.flower.federation.client.own_memory import read_memory, shared
from fedstale.flower.federation.protocol.link import Arrival, Fault
from fedstale.flower.federation.protocol.messages import kind_of, pack_body, pack_order, unpack_body, unpack_order
from fedstale.flower.federation.server.diagnostics import status
from fedstale.flower.federation.server.rounds import Server
from fedstale.participation import Trace
from tests.flower.federation.inprocess import InProcess, roster_of
from tests.flower.federation.parts import LOCAL, TASK, D, N, made, played, server, table

RULES = [{"kind": "fedstale", "beta": 0.5}, {"kind": "mifa"}, {"kind": "fedvarp"}, {"kind": "auto"}]


class Keepers(InProcess):
    """Clients with folders of their own; orders and replies go through Flower's records."""

    def __init__(self, folder: Path, answer: Any = lambda order, body: None) -> None:
        super().__init__(TASK, range(N), answer)
        self.folder = folder

    def context(self, i: int) -> Context:
        return Context(1, i, {"own": str(self.folder / str(i))}, RecordDict(), {})

    def trained(self, order: Any) -> Any:
        order = unpack_order(pack_order(order), kind_of(order), order.node)
        body = super().trained(order)
        return unpack_body(pack_body(shared(self.context(order.client), order, body)))


def at_clients(rule: dict[str, Any]) -> dict[str, Any]:
    return rule | {"memory": "clients"}


def held(link: Keepers, state: Any, run: str) -> Any:
    """Σ v_i h_i of what the clients hold that the server has counted."""
    total, sums = np.zeros(D), state.checkpoint.state
    for i in range(N):
        mine = read_memory(link.context(i), f"memory-{run}").counted(int(sums.counted[i]), sums.epoch)
        total += mine.weight * mine.h if len(mine.h) else 0
    return total


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["kind"])
def test_it_has_the_bits_of_a_simulation_and_no_memory_at_the_server(tmp_path: Path, rule: dict[str, Any]) -> None:
    """The server is restarted after every round."""
    rows, link = table(8), Keepers(tmp_path / "own")
    for row in rows:
        s = server(tmp_path, link, strategy=at_clients(rule))
        last = played(s, link, row[None])[-1].state
    a = s.settings.algorithm
    *_, due = simulate(
        Serial(TASK, Local(**LOCAL)), a.strategy, Trace(rows), rounds=8, seed=1, estimator=s.rules.estimator
    )
    assert np.array_equal(last.checkpoint.params, due.params)
    assert last.checkpoint.state.memory is None
    np.testing.assert_allclose(last.checkpoint.state.total, held(link, last, s.ledger.run), atol=1e-12)


def test_the_status_does_not_tell_weights_that_the_server_cannot_know(tmp_path: Path) -> None:
    link = Keepers(tmp_path / "own")
    s = server(tmp_path, link, strategy=at_clients(RULES[0]))
    told = status(played(s, link, table(3))[-1].state, s.rules.estimator)["clients"]
    assert [client["weight_realised"] for client in told] == [None] * N
    assert all(client["weight_target"] > 0 for client in told)


def test_an_update_that_got_lost_is_not_remembered(tmp_path: Path) -> None:
    """Replies that the client sent and the server never had: its memory is that of the round before."""
    lost = lambda order, body: (  # noqa: E731
        [Arrival("", order.node, None, Fault.absent)] if order.t in (2, 4) and order.client < 3 else None
    )
    link = Keepers(tmp_path / "own", lost)
    for _ in range(6):
        s = server(tmp_path, link, strategy=at_clients(RULES[0]))
        (closed,) = played(s, link, np.ones((1, N), bool))
        sums = closed.state.checkpoint.state
        np.testing.assert_allclose(sums.total, held(link, closed.state, s.ledger.run), atol=1e-12)
    assert sums.epoch == 0


def test_a_client_that_lost_its_memory_is_recognised_and_all_begin_anew(tmp_path: Path) -> None:
    link = Keepers(tmp_path / "own")
    s = server(tmp_path, link, strategy=at_clients(RULES[0]))
    played(s, link, np.ones((3, N), bool))
    shutil.rmtree(tmp_path / "own" / "2")
    s = server(tmp_path, link, strategy=at_clients(RULES[0]))
    missed, first, second = played(s, link, np.ones((3, N), bool))
    assert missed.line["rejected"] == {"2": "its memory is lost: all memories begin anew"}
    assert missed.state.checkpoint.state.epoch == 1
    assert first.line["heard"] == second.line["heard"] == [*range(N)]
    np.testing.assert_allclose(
        second.state.checkpoint.state.total, held(link, second.state, s.ledger.run), atol=1e-12
    )


def test_a_change_of_the_roster_lets_all_memories_begin_anew(tmp_path: Path) -> None:
    link = Keepers(tmp_path / "own")
    versions = iter([*[roster_of(range(4))] * 3, *[roster_of(range(N), version=2)] * 9])
    settings = made(tmp_path, strategy=at_clients({"kind": "auto"}))
    play = Server(settings, link, lambda: next(versions), TASK.init).play()
    closed = [next(play) for _ in range(5)]
    play.close()
    state = closed[-1].state.checkpoint.state
    assert (state.epoch, state.unit, len(state.counted)) == (1, N, N)
    assert closed[-1].line["heard"] == [*range(N)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"defence": True}, "a defence judges single updates, which a server that has sums only cannot"),
        ({"defence": False, "pace": {"kind": "buffer", "size": 2, "concurrency": 4}}, "needs rounds, in which"),
        ({"strategy": at_clients({"kind": "scaffold"})}, "memory"),
        ({"strategy": at_clients({"kind": "private-fedstale", "clip": 1.0}), "privacy": {"noise": 1.0}},
         "noise and epsilon need the memory at the server"),
    ],
)  # fmt: skip
def test_what_needs_single_updates_is_one_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        made(tmp_path, **{"strategy": at_clients(RULES[0]), **changes})


def test_averaged_buffers_are_refused(tmp_path: Path) -> None:
    start = lambda seed: (TASK.init(seed), np.zeros(3))  # noqa: E731
    settings = made(tmp_path, strategy=at_clients(RULES[0]))
    with pytest.raises(BadInput, match="averaged buffers are not summed"):
        Server(settings, Keepers(tmp_path), lambda: roster_of(range(N)), start)

"""A federation defends itself as a simulation does, and a restart changes nothing."""

import numpy as np
import pytest

import fedstale as fs
from fedstale.core import BadInput, Local
from fedstale.engines import Serial
from fedstale.flower.federation.protocol.link import Arrival
from fedstale.flower.federation.server.diagnostics import trace
from fedstale.flower.federation.state.resize import memories
from tests.flower.federation.inprocess import InProcess, scaled
from tests.flower.federation.parts import LOCAL, TASK, N, made, played, server, table

LIARS = fs.defence.Liars((0,), factor=-1.0)


def lying(order, body):
    """The reply of client 0 has its sign flipped."""
    if order.client not in LIARS.clients:
        return None
    return [Arrival("", order.node, scaled(body, LIARS.factor))]


def simulated(rules, rows, liars=LIARS):
    *_, last = fs.simulate(
        Serial(TASK, Local(**LOCAL)), rules.strategy, fs.Trace(rows), rounds=len(rows), seed=1,
        server=rules.server, estimator=rules.estimator, defence=rules.defence, liars=liars,
    )  # fmt: skip
    return last.params


@pytest.mark.parametrize("strategy", ["fedavg", "fedstale", "auto"])
def test_liars_are_refused_with_the_bits_of_a_simulation_across_a_restart(tmp_path, strategy):
    rows, link = table(16), InProcess(TASK, range(N), lying)
    first = played(server(tmp_path, link, strategy=strategy, rounds=16), link, rows[:8])
    again = server(tmp_path, link, strategy=strategy, rounds=16)
    rest = played(again, link, rows[8:])
    refused = [line["refused"] for line in (closed.line for closed in first + rest)]
    assert sum(0 in row for row in refused) > rows[:, 0].sum() / 2
    assert rest[-1].line["rejected"].keys() == {str(i) for i in rest[-1].line["refused"]}
    assert np.array_equal(rest[-1].state.checkpoint.params, simulated(again.rules, rows))
    assert np.array_equal(trace([closed.line for closed in first + rest])[1], rows)


def test_a_forgotten_row_stays_forgotten_after_a_restart(tmp_path):
    rows, link = np.ones((8, N), bool), InProcess(TASK, range(N), lying)
    last = played(server(tmp_path, link), link, rows)[-1]
    assert 0 in last.line["refused"]
    loaded = server(tmp_path, link).ledger.load()
    for (_, memory), (_, before) in zip(memories(loaded), memories(last.state), strict=True):
        assert memory.written[0] == 0
        assert not memory.row(0).any()
        assert np.array_equal(memory.rows, before.rows)
        assert np.array_equal(memory.total, before.total)


def test_a_liar_alone_stops_no_federation(tmp_path):
    link = InProcess(TASK, [0], lying)
    first, second = server(tmp_path, link, rounds=2).play()
    assert (first.line["heard"], second.line["heard"]) == ([], [])
    assert "cannot be compared" in second.line["rejected"]["0"]
    assert second.state.voids == 0


def test_clients_that_join_are_watched_too(tmp_path):
    s = server(tmp_path, InProcess(TASK, range(N)))
    state = s.rules.initial(3, np.zeros(4, np.float32))
    state.checkpoint.defence.doubt[:] = [0.1, 0.2, 0.3]
    grown = s.rules.with_roster(state._replace(ids=np.array([0, 1, 2])), np.array([0, 2, 5]), 2)
    assert grown.checkpoint.defence.doubt.tolist() == [0.1, 0.3, 0.0]


def test_the_defence_is_on_unless_the_file_says_otherwise(tmp_path):
    assert made(tmp_path).rules.defence == fs.defence.Defence()
    assert made(tmp_path, defence={"loud": 9}).rules.defence == fs.defence.Defence(loud=9.0)
    off = made(tmp_path, defence=False)
    assert off.rules.defence is None
    assert len({s.run for s in (made(tmp_path), made(tmp_path, defence={"loud": 9}), off)}) == 3
    with pytest.raises(
        BadInput, match=r"round.norm_factor is gone, because a defence judges the norms now: remove"
    ):
        made(tmp_path, round={"norm_factor": 20.0})


def test_a_federation_has_no_samples_of_clients_to_copy(tmp_path):
    with pytest.raises(BadInput, match=r"defence.root is a number in simulations only: .*, got 20"):
        server(tmp_path, InProcess(TASK, range(N), lying), defence={"root": 20})

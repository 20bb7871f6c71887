"""Federated evaluation: what clients say of the model."""

import numpy as np
import pytest

from fedstale.flower.federation.protocol.exchange import Outcome
from fedstale.flower.federation.protocol.link import Accepted, LinkDown
from fedstale.flower.federation.server.diagnostics import evaluation, scores, scores_in_words
from fedstale.flower.federation.state.manifest import read_metrics
from tests.flower.federation.inprocess import InProcess
from tests.flower.federation.parts import TASK, N, played, server, table


def test_clients_evaluate_the_model_every_so_many_rounds_and_at_the_end(tmp_path):
    """The numbers are those of the parameters after the round, weighted by a_i; training has the same bits."""
    link, plain = InProcess(TASK, range(N)), InProcess(TASK, range(N))
    rows = table(8)
    rounds = played(server(tmp_path / "a", link, rounds=8, round={"evaluate": 3}), link, rows)
    assert [c.line["round"] for c in rounds if "evaluated" in c.line] == [3, 6, 8]
    due = TASK.evaluate(rounds[2].state.checkpoint.params)["objective"]
    assert rounds[2].line["evaluated"] == np.flatnonzero(rows[2]).tolist()
    assert rounds[2].line["test_loss"] == pytest.approx(due, rel=1e-5)
    assert rounds[2].line["accuracy"] is None  # a quadratic has none
    assert evaluation(read_metrics(tmp_path / "a" / "state"))["evaluated_round"] == 8
    without = played(server(tmp_path / "b", plain, rounds=8), plain, rows)
    assert without[-1].line["fingerprint"] == rounds[-1].line["fingerprint"]
    assert evaluation(read_metrics(tmp_path / "b" / "state")) == {}


def test_an_evaluation_that_fails_does_not_cost_the_round(tmp_path):
    def answer(order, body):
        if order.evaluate:
            raise LinkDown("gone")

    link = InProcess(TASK, range(N), answer)
    (closed,) = played(server(tmp_path, link, round={"evaluate": 1}), link, table(1))
    assert closed.line["round"] == 1
    assert "evaluated" not in closed.line


def test_scores_are_weighted_and_impossible_ones_do_not_count():
    def told(accuracy, loss):
        return Accepted(np.array([accuracy], np.float32), loss, 0.0)

    outcome = Outcome({0: told(0.5, 1.0), 1: told(1.0, 3.0), 2: told(-1.0, 5.0), 3: told(1e30, 1e30)}, {})
    found = scores(outcome, {0: 0.4, 1: 0.2, 2: 0.2, 3: 0.2})
    assert found["evaluated"] == [0, 1, 2]
    assert found["accuracy"] == pytest.approx((0.4 * 0.5 + 0.2) / 0.6, abs=1e-5)
    assert found["test_loss"] == pytest.approx((0.4 + 0.6 + 1.0) / 0.8)
    assert scores(Outcome({}, {}), {}) == {"evaluated": [], "accuracy": None, "test_loss": None}


def test_an_evaluation_is_told_in_words():
    found = evaluation([{"round": 4, "evaluated": [0, 2], "accuracy": 0.91234, "test_loss": None}, {"round": 5}])
    assert scores_in_words(found) == "round 4 evaluated by 2 clients: accuracy 0.9123"

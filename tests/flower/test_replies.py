"""Replies that cannot be used are refused with a reason, and the round goes on without them."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedstale.flower import FedStale
from tests.flower.direct import Direct, away, reply
from tools.replies_fuzz import fuzz

GOOD = {"num-examples": 2, "train_loss": 0.5}


def one_round(lie, evaluate=False):
    """The strategy after a round in which client 3 answers with `lie(message)`, before the others do."""

    def answer(message, context):
        if context.node_id == 1003:
            return lie(message)
        return reply(message, {"w": message.content["arrays"]["w"].numpy() + 1}, GOOD)

    grid, strategy = Direct(5, answer), FedStale("fedavg")
    grid.online = [3, 0, 1, 2, 4]
    start = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    sent = strategy.configure_train(1, start, ConfigRecord(), grid)
    arrays, metrics = strategy.aggregate_train(1, grid.send_and_receive(sent))
    assert arrays["w"].numpy().tolist() == [1, 1]
    assert metrics["train_loss"] == 0.5
    return strategy


def floats(*values, dtype=np.float32):
    return np.array(values, dtype)


def longer(values):
    made = Array(values)
    made.data += bytes(4)
    return made


@pytest.mark.parametrize(
    ("arrays", "metrics", "reason"),
    [
        ({"w": floats(1, np.nan)}, GOOD, "the parameters are not finite"),
        ({"w": floats(1, np.inf)}, GOOD, "the parameters are not finite"),
        ({"w": floats(1, 2, 3)}, GOOD, "array 'w' must have the shape (2,), got (3,)"),
        ({"w": floats(1, 2, dtype=np.int32)}, GOOD, "array 'w' must be float32, got int32"),
        ({"w": floats(1, 1e39, dtype=np.float64)}, GOOD, "the parameters are not finite"),
        ({"w": longer(floats(1, 2))}, GOOD, "array 'w' is not what its header says"),
        ({"v": floats(1, 2)}, GOOD, "array 'w' is missing"),
        ({"w": floats(1, 2), "v": floats(1)}, GOOD, "array 'v' was not asked for"),
        (
            {"w": floats(1, 2)},
            {"num-examples": 0, "train_loss": 1.0},
            "'num-examples' must be a number above 0, got 0",
        ),
        ({"w": floats(1, 2)}, {"num-examples": 1e300, "train_loss": 1.0}, "above 0, got 1e+300"),
        ({"w": floats(1, 2)}, {"train_loss": 1.0}, "the metrics have no 'num-examples'"),
        ({"w": floats(1, 2)}, {"num-examples": 2}, "not those of most replies, ['num-examples', 'train_loss']"),
    ],
)
def test_a_reply_that_cannot_be_used_is_refused(arrays, metrics, reason, monkeypatch):
    told = []
    monkeypatch.setattr(logging.getLogger("flwr"), "warning", lambda text, *values: told.append(text % values))
    strategy = one_round(lambda message: reply(message, arrays, metrics))
    assert reason in strategy.report.refused["1003"]
    assert len(strategy.report.heard) == 4
    assert any("round 1: the reply of node 1003 is refused" in line and reason in line for line in told)


def test_a_reply_in_the_name_of_another_client_is_refused():
    def lie(message):
        made = reply(message, {"w": floats(9, 9)}, GOOD)
        made.metadata.__dict__["_src_node_id"] = 1001
        return made

    strategy = one_round(lie)
    assert strategy.report.refused == {"1001": "replies to a message of another client"}
    assert len(strategy.report.heard) == 4


def test_the_first_of_two_replies_stands():
    def lie(message):
        return [reply(message, {"w": floats(x, x)}, GOOD) for x in (1, 9)]

    assert one_round(lie).report.refused == {"1003": "answered twice; the first reply stands"}


def test_an_error_of_the_grid_is_told():
    def lost(message):
        made = away(message, "lost on the way")
        made.metadata.__dict__["_src_node_id"] = 1
        return made

    assert one_round(lost).report.refused == {"1": "error 0: lost on the way"}


def test_an_error_and_a_reply_without_records_are_refused():
    assert one_round(lambda m: away(m, "no power")).report.refused == {"1003": "error 0: no power"}
    found = one_round(lambda m: Message(RecordDict(), reply_to=m)).report.refused
    assert found == {"1003": "a reply must have one MetricRecord, got 0"}


def test_evaluation_goes_on_without_metrics_that_cannot_be_averaged():
    bad = [{}, {"num-examples": -1, "score": 1.0}, {"num-examples": 1, "score": [1.0]}, {"num-examples": 1}]

    def answer(message, context):
        k = int(context.node_config["partition-id"])
        if k == 7:
            return away(message)
        metrics = bad[k] if k < len(bad) else {"num-examples": k, "score": float(k)}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    grid, strategy = Direct(8, answer), FedStale("auto")
    sent = strategy.configure_evaluate(1, ArrayRecord({"w": Array(np.zeros(2, np.float32))}), ConfigRecord(), grid)
    found = strategy.aggregate_evaluate(1, grid.send_and_receive(sent))
    assert found["score"] == pytest.approx((16 + 25 + 36) / 15)


def test_fuzzed_replies_are_refused():
    """The full version is `python -m tools.replies_fuzz`."""
    assert fuzz(300, 7)["replies"] >= 300

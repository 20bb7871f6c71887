"""A training that learns nothing says so: in the log, after two rounds, and at its end."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedstale.core import BadInput
from fedstale.flower import FedStale
from tests.flower.direct import Direct, N, away, quadratic, reply, start, table


@pytest.fixture
def told(monkeypatch):
    """What was logged, as (level, line)."""
    found = []
    for level in ("warning", "error"):
        add = lambda text, *values, level=level: found.append((level, text % values))  # noqa: E731
        monkeypatch.setattr(logging.getLogger("flwr"), level, add)
    return found


def wrong(message, context):
    return reply(message, {"v": np.zeros(2, np.float32)}, {"num-examples": 1})


def test_two_rounds_without_a_reply_that_can_be_used_stop_the_training(told):
    strategy = FedStale("auto", fraction_evaluate=0.0)
    with pytest.raises(
        BadInput, match=r"^in 2 rounds in a row no reply could be used: node \d+: array 'w' is missing"
    ):
        strategy.start(Direct(N, wrong), start(), num_rounds=10)
    assert strategy.report.t == 2
    errors = [line for level, line in told if level == "error"]
    assert len(errors) == 2
    assert errors[0].startswith("round 1: no reply is used: node 100")
    assert strategy.state_dict()  # what was there is not lost


@pytest.mark.parametrize(("stop_after", "rounds"), [(1, 1), (3, 3)])
def test_a_setting_changes_the_number_of_rounds(stop_after, rounds):
    strategy = FedStale("auto", fraction_evaluate=0.0, stop_after=stop_after)
    with pytest.raises(BadInput, match="no reply could be used"):
        strategy.start(Direct(N, wrong), start(), num_rounds=10)
    assert strategy.report.t == rounds


def test_without_a_limit_the_end_says_that_nothing_was_learned():
    strategy = FedStale("auto", fraction_evaluate=0.0, stop_after=None)
    with pytest.raises(
        BadInput, match=r"^nothing was learned in 4 rounds, no update could be used: node \d+: array"
    ):
        strategy.start(Direct(N, wrong), start(), num_rounds=4)
    assert strategy.report.t == 4


@pytest.mark.parametrize("reason", [r"node \d+: error 0: no power", "no client has answered"])
def test_clients_that_fail_or_stay_away_do_not_stop_it_before_the_end(reason):
    answer = (lambda m, c: away(m, "no power")) if "power" in reason else (lambda m, c: None)
    strategy = FedStale("auto", fraction_evaluate=0.0)
    with pytest.raises(BadInput, match=f"^nothing was learned in 4 rounds, no update could be used: {reason}$"):
        strategy.start(Direct(N, answer), start(), num_rounds=4)


def test_rounds_that_are_not_in_a_row_do_not_stop_it():
    honest, there = quadratic(), table(6)

    def answer(message, context):
        bad = message.content["config"]["server-round"] % 2 == 0
        return wrong(message, context) if bad else honest(message, context)

    strategy = FedStale("auto", fraction_evaluate=0.0)
    strategy.start(Direct(N, answer), start(), num_rounds=len(there))
    assert strategy.report.t == 6


def test_a_resumed_training_that_hears_nobody_keeps_what_it_had():
    first, again = (FedStale("unbiased", fraction_evaluate=0.0) for _ in range(2))
    first.start(Direct(N, quadratic()), start(), num_rounds=1)
    again.load_state_dict(first.state_dict())
    found = again.start(Direct(N, lambda m, c: away(m)), again.arrays, num_rounds=3)
    assert np.array_equal(found.arrays["w"].numpy(), first.arrays["w"].numpy())


def doubled(message, context):
    """As NumPy code that forgets astype answers, with no number of examples."""
    w = message.content["arrays"]["w"].numpy().astype(np.float64) + context.node_id - 999
    return reply(message, {"w": w}, {"score": float(context.node_id)})


def test_replies_without_weights_count_the_same_with_one_warning(told):
    model = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    strategy = FedStale("fedavg", fraction_evaluate=0.0)
    result = strategy.start(Direct(3, doubled), model, num_rounds=3)
    assert result.arrays["w"].numpy().tolist() == [6.0, 6.0]
    assert dict(result.train_metrics_clientapp[1])["score"] == pytest.approx(1001)
    lines = [line for _, line in told if "num-examples" in line]
    assert lines == ["the metrics of clients have no 'num-examples': all count the same"]


def test_the_weight_of_one_client_does_not_count_where_the_others_tell_none():
    def answer(message, context):
        more = {"num-examples": 1e6} if context.node_id == 1000 else {}
        w = np.full(2, context.node_id - 1000, np.float32)
        return reply(message, {"w": w}, more | {"score": 1.0})

    strategy = FedStale("fedavg", fraction_evaluate=0.0, defence=None)
    found = strategy.start(Direct(3, answer), ArrayRecord({"w": Array(np.zeros(2, np.float32))}), num_rounds=1)
    assert found.arrays["w"].numpy().tolist() == [1.0, 1.0]


def test_evaluation_without_weights_counts_all_the_same():
    def answer(message, context):
        metrics = RecordDict({"metrics": MetricRecord({"score": float(context.node_id)})})
        return Message(metrics, reply_to=message)

    strategy, grid = FedStale("auto"), Direct(3, answer)
    sent = strategy.configure_evaluate(1, start(), ConfigRecord(), grid)
    assert strategy.aggregate_evaluate(1, grid.send_and_receive(sent))["score"] == pytest.approx(1001)


def test_float64_replies_train_as_float32_ones_do():
    there = table(5)
    honest = quadratic(there, [1, 2, 3, 4, 5, 6])

    def answer(message, context):
        made = honest(message, context)
        if made.has_content():
            made.content["arrays"] = ArrayRecord(
                {"w": Array(made.content["arrays"]["w"].numpy().astype(np.float64))}
            )
        return made

    found = [FedStale("auto").start(Direct(N, a), start(), num_rounds=5).arrays["w"] for a in (honest, answer)]
    assert np.array_equal(*(a.numpy() for a in found))
    assert found[1].dtype == "float32"

"""A strategy with a pace: the server waits for nobody, and ages reach the rule as in a simulation."""

import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord

import fedstale as fs
from fedstale.core import BadInput, Local
from fedstale.engines import Serial
from fedstale.flower import Buffer, FedStale, Ticks, Uneven, flights, strategy
from fedstale.participation.clock import Row
from tests.flower.direct import D, Direct, N, away, reply
from tests.flower.virtual import Virtual

TASK = fs.Quadratic.random(N, D, seed=3)
SPEEDS = [1.0, 1.1, 1.2, 3.3, 7.0, 11.0]


def honest(message, context):
    """Three steps of gradient descent without noise: an update depends on what was sent alone."""
    k, w = int(context.node_config["partition-id"]), message.content["arrays"]["w"].numpy().copy()
    for _ in range(3):
        loss, gradient = TASK.gradient(w, k, np.zeros(D))
        w -= np.float32(0.05) * gradient
    return reply(message, {"w": w}, {"num-examples": 20, "train_loss": float(loss), "num-steps": 3})


@pytest.fixture
def on(monkeypatch):
    """Makes a grid whose clock is that of the strategy."""

    def made(answer=honest, seconds=SPEEDS):
        grid = Virtual(answer, seconds)
        for module in (flights, strategy):
            monkeypatch.setattr(module, "time", grid)
        random.seed(1)
        return grid

    return made


def played(grid, steps, rule="auto", pace=Buffer(2, 4), **settings):
    made = FedStale(rule, fraction_evaluate=0.0, pace=pace, **settings)
    return made, made.start(grid, start(), num_rounds=steps).arrays["w"].numpy()


def start():
    return ArrayRecord({"w": Array(TASK.init(0))})


def timeline(made):
    """The reports of a strategy as rows that a clock plays again."""
    order = {name: k for k, name in enumerate(made.report.clients)}
    rows = []
    for report in made.reports:
        pairs = sorted((order[name], age) for name, age in report.ages.items())
        clients, ages = (np.array([pair[j] for pair in pairs], np.int64) for j in (0, 1))
        rows.append(Row(clients, ages, report.seconds, 0, 0, 0, 0.0, clients[:0]))
    return rows


@pytest.mark.parametrize("rule", ["auto", "fedbuff", "fedasync", "mifa", "ca2fl"])
@pytest.mark.parametrize("pace", [Buffer(2, 4), Buffer(5, 6), Ticks(2.0, 6)], ids=str)
def test_a_rule_has_the_bits_of_a_simulation_of_the_same_timeline(on, tmp_path, rule, pace):
    made, found = played(on(), 30, rule, pace)
    assert max(age for report in made.reports for age in report.ages.values()) >= 2
    fs.Clock.save(timeline(made), tmp_path / "timeline.csv")
    places = [place(made, name) for name in made.report.clients]
    task = fs.Quadratic(TASK.centers[places], np.asarray(TASK.curvature)[places])
    *_, end = fs.simulate(
        Serial(task, Local(lr=0.05, steps=3)), made.rules.strategy, fs.Bernoulli(1.0), rounds=30,
        estimator=made.rules.plain, clock=fs.Clock(replay=tmp_path / "timeline.csv"),
    )  # fmt: skip
    np.testing.assert_array_equal(found, end.params)


def place(made, name):
    (node,) = (node for node, known in made._identities.names.items() if known == name)
    return node - 1000


def test_a_step_waits_for_its_buffer_and_keeps_as_many_at_work_as_allowed(on):
    grid = on()
    made, _ = played(grid, 12, pace=Buffer(3, 4))
    assert all(len(report.ages) <= 3 for report in made.reports)
    assert made.report.seconds < 12 * 11.0 / 3  # rounds would wait for the slowest
    counts = np.bincount(grid.asked, minlength=N)
    assert counts[:3].sum() > 2 * counts[3:].sum()
    assert len(grid.queue) == 3  # at work when the last step is made: those who have answered are not sent more


def test_a_resumed_training_counts_what_was_in_flight_as_absent(on):
    _, found = played(on(seconds=[1.0] * N), 8, pace=Buffer(N, N))
    first, _ = played(on(seconds=[1.0] * N), 5, pace=Buffer(N, N))
    again = FedStale("auto", fraction_evaluate=0.0, pace=Buffer(N, N))
    again.load_state_dict(first.state_dict())
    result = again.start(on(seconds=[1.0] * N), again.arrays, num_rounds=3)
    assert np.array_equal(result.arrays["w"].numpy(), found)
    slow, _ = played(on(), 7)
    later = FedStale("auto", fraction_evaluate=0.0, pace=Buffer(2, 4))
    later.load_state_dict(slow.state_dict())
    grid = on()
    later.start(grid, later.arrays, num_rounds=4)
    assert [report.t for report in later.reports] == [8, 9, 10, 11]
    assert later.reports[0].ages == dict.fromkeys(later.reports[0].heard, 0)


def test_a_client_that_fails_is_asked_again_in_the_next_step_and_does_not_count(on):
    def answer(message, context):
        return away(message) if context.node_id == 1000 else honest(message, context)

    made, found = played(on(answer), 10, pace=Buffer(2, N))
    assert np.isfinite(found).all()
    assert sum("1000" in report.refused for report in made.reports) >= 5
    assert all(len(report.heard) >= 1 for report in made.reports)


def test_steps_close_if_everybody_fails(on):
    with pytest.raises(BadInput, match="nothing was learned in 4 rounds"):
        played(on(lambda m, c: away(m)), 4)


def test_a_node_that_does_not_answer_in_time_is_missing(on):
    def answer(message, context):
        return None if context.node_id == 1005 else honest(message, context)

    grid = on(answer)
    made = FedStale("auto", fraction_evaluate=0.0, pace=Buffer(3, N))
    made.start(grid, start(), num_rounds=12, timeout=8)
    assert any(report.missing for report in made.reports)
    assert grid.asked.count(5) >= 2


def test_idle_clients_evaluate_and_nobody_waits_for_those_at_work(on):
    seen = []

    def answer(message, context):
        if message.metadata.message_type == "train":
            return honest(message, context)
        seen.append(context.node_id)
        return reply(message, {}, {"num-examples": 1, "score": 1.0})

    made = FedStale("auto", pace=Buffer(2, N))
    result = made.start(on(answer), start(), num_rounds=6)
    assert result.evaluate_metrics_clientapp[6]["score"] == 1.0
    assert 1005 not in seen[:4]


def test_the_result_tells_ages_and_the_app_evaluates_every_step(on):
    made = FedStale("auto", fraction_evaluate=0.0, pace=Buffer(2, N))
    result = made.start(
        on(), start(), num_rounds=8, evaluate_fn=lambda t, arrays: MetricRecord({"seconds": float(t)})
    )
    assert [*result.evaluate_metrics_serverapp] == [*range(9)]
    assert result.train_metrics_clientapp[8]["fedstale-age"] == np.mean([*made.report.ages.values()])


def test_what_cannot_be_without_waiting_is_a_sentence():
    for settings, sentence in (
        ({"pace": fs.clock.Rounds()}, r"^a pace is Buffer or Ticks, got Rounds\(.*\): rounds are played without"),
        (
            {"pace": Buffer(), "defence": fs.defence.Defence()},
            "a defence compares updates from the same parameters",
        ),
        ({"pace": Buffer(), "defence": True}, "a defence compares updates from the same parameters"),
        ({"pace": Buffer(), "fraction_train": 0.5}, r"leave out fraction_train=0.5"),
        ({"pace": Buffer(), "rule": "ca-fed"}, "selects clients by their losses"),
        ({"pace": 3}, "pace must be an object such as"),
    ):
        with pytest.raises(BadInput, match=sentence):
            Uneven(**settings)
    with pytest.raises(BadInput, match="is played by `start`"):
        FedStale(pace=Buffer()).configure_train(1, start(), None, Direct(2, honest))

"""FedStale and Uneven in the place of Flower's FedAvg, with a grid in this process."""

import inspect

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedstale as fs
from fedstale.core import BadInput, hooks_of
from fedstale.engines import Serial
from fedstale.flower import FedStale, Uneven
from fedstale.registry import RECIPES, recipe
from tests.flower.direct import LOCAL, TASK, D, Direct, N, away, quadratic, reply, start, table

ELSEWHERE = {"scaffold", "amplified-scaffold", "fedawe", "fedpbc", "focus"}  # they change what clients do
POSSIBLE = [name for name in RECIPES if name not in ELSEWHERE]
PLAIN = [name for name in POSSIBLE if not hooks_of(recipe(name).strategy).select]


def trained(strategy, grid, rounds, **settings):
    return strategy.start(grid, start(), num_rounds=rounds, **settings).arrays["w"].numpy()


def simulated(strategy, there, task=TASK):
    estimator = strategy.rules.estimator.estimator
    *_, end = fs.simulate(
        Serial(task, LOCAL),
        strategy.rules.strategy,
        fs.Trace(there),
        rounds=len(there),
        estimator=estimator,
        defence=strategy.rules.defence,
    )
    found = strategy._training.population.checkpoint.belief
    assert np.array_equal(strategy.rules.estimator.probs(found), estimator.probs(end.checkpoint.belief))
    return end.params


class Coming(Direct):
    """A grid in which only those are online who are there in the round."""

    def __init__(self, there, **settings):
        super().__init__(N, quadratic(**settings))
        self.there, self.t = there, 0

    def send_and_receive(self, messages, *, timeout=None):
        asked = list(messages)
        replies = super().send_and_receive(asked)
        self.t += len(asked) > 0  # nobody is asked to evaluate
        return replies

    @property
    def online(self):
        return np.flatnonzero(self.there[min(self.t, len(self.there) - 1)]).tolist()

    @online.setter
    def online(self, value):
        pass


@pytest.mark.parametrize("name", PLAIN)
def test_every_recipe_has_the_bits_of_a_simulation(name):
    there = table(12)
    strategy = FedStale(name, fraction_evaluate=0.0)
    assert np.array_equal(trained(strategy, Direct(N, quadratic(there)), 12), simulated(strategy, there))


@pytest.mark.parametrize(
    ("rule", "examples"),
    [
        ("auto", [10, 20, 30, 40, 50, 60]),
        ("more-available", [3, 4, 5, 6, 7, 8]),
        (fs.strategies.F3AST(clients=2), [9] * N),
    ],
    ids=str,
)
def test_clients_that_are_offline_are_absent_and_weights_are_numbers_of_examples(rule, examples):
    there = table(12, 0.7)
    there[:, :2] = True  # Flower waits for two nodes
    task = fs.Quadratic(TASK.centers, TASK.curvature, weights=examples, noise=TASK.noise)
    strategy = Uneven(rule, fraction_evaluate=0.0)
    found = trained(strategy, Coming(there, examples=examples), 12)
    assert np.array_equal(found, simulated(strategy, there, task))


@pytest.mark.parametrize("name", [name for name in POSSIBLE if name not in PLAIN])
def test_every_recipe_that_selects_trains(name):
    strategy = FedStale(name, fraction_evaluate=0.0)
    found = trained(strategy, Direct(N, quadratic(table(8))), 8)
    assert np.isfinite(found).all()
    assert TASK.evaluate(found)["distance"] < TASK.evaluate(TASK.init(0))["distance"]


def test_fednova_needs_the_steps_of_all_clients():
    def client(message, context):
        metrics = {"num-examples": 1, "num-steps": 0 if context.node_id == 1000 else 3}
        return reply(message, {"w": message.content["arrays"]["w"].numpy() + 1}, metrics)

    with pytest.raises(BadInput, match="FedNova needs the local steps of each client"):
        trained(FedStale("fednova", fraction_evaluate=0.0), Direct(2, client), 1)


def test_the_constructor_is_that_of_fedavg_after_the_rule():
    theirs, ours = (inspect.signature(kind).parameters for kind in (FedAvg, FedStale))
    assert next(iter(ours)) == "rule"
    assert [*ours][1 : len(theirs) + 1] == [*theirs]
    assert all(
        ours[name].default == theirs[name].default and ours[name].kind == theirs[name].kind for name in theirs
    )
    assert issubclass(FedStale, FedAvg)
    assert FedStale("auto", 0.5).fraction_train == 0.5


def test_the_rule_fedavg_does_what_flowers_fedavg_does():
    there = table(5)
    found = [trained(s, Direct(N, quadratic(there, [1, 2, 3, 4, 5, 6])), 5) for s in (FedAvg(), FedStale("fedavg"))]
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_configuration_keys_metrics_and_evaluation_stay():
    seen = []

    def client(message: Message, context):
        config, w = message.content["settings"], message.content["model"]["w"].numpy()
        seen.append((message.metadata.message_type, config["lr"], config["server-round"]))
        metrics = MetricRecord({"samples": context.node_id - 999, "score": float(context.node_id)})
        content = {"metrics": metrics}
        if message.metadata.message_type == "train":
            content["model"] = ArrayRecord({"w": Array(w + 1)})
        return Message(RecordDict(content), reply_to=message)

    def first(records, key):
        return MetricRecord({"count": len(records), "first": next(iter(records[0].metric_records.values()))[key]})

    strategy = FedStale(
        "fedavg", weighted_by_key="samples", arrayrecord_key="model", configrecord_key="settings",
        train_metrics_aggr_fn=first,
    )  # fmt: skip
    result = strategy.start(
        Direct(2, client), ArrayRecord({"w": Array(np.zeros(3, np.float32))}), num_rounds=2,
        train_config=ConfigRecord({"lr": 0.5}), evaluate_config=ConfigRecord({"lr": 0.1}),
        evaluate_fn=lambda t, arrays: MetricRecord({"mean": float(arrays["w"].numpy().mean())}),
    )  # fmt: skip
    assert sorted({*seen}) == [(kind, lr, t) for kind, lr in (("evaluate", 0.1), ("train", 0.5)) for t in (1, 2)]
    own = {name: x for name, x in result.train_metrics_clientapp[2].items() if not name.startswith("fedstale-")}
    assert own == {"count": 2, "first": 1}
    assert result.evaluate_metrics_clientapp[1]["score"] == pytest.approx((1000 + 2 * 1001) / 3)
    assert [result.evaluate_metrics_serverapp[t]["mean"] for t in range(3)] == [0, 1, 2]
    assert len(strategy.report.heard) == 2


def test_a_sample_of_the_clients_trains():
    strategy = FedStale("auto", fraction_train=0.5, fraction_evaluate=0.0)
    trained(strategy, Direct(N, quadratic()), 3)
    assert len(strategy.report.heard) == 3


def test_newcomers_start_with_rows_and_intervals_of_their_own():
    there = np.ones((8, N), bool)
    there[:5, 4:] = there[1, 3] = False
    strategy = FedStale("fedstale", fraction_evaluate=0.0)
    trained(strategy, Coming(there), 8)
    population = strategy._training.population
    assert len(population.names) == N
    assert population.checkpoint.state.written.tolist() == [8] * N
    probs = strategy.rules.estimator.probs(population.checkpoint.belief)
    assert probs.tolist() == [1, 1, 1, 7 / 8, 1, 1]  # the newcomers never missed a round
    np.testing.assert_allclose(population.weights, 1 / N, rtol=1e-6)


def test_leavers_are_forgotten_after_so_many_rounds():
    there = np.ones((8, N), bool)
    there[3:, 2] = False
    strategy = FedStale("mifa", fraction_evaluate=0.0, forget_after=3)
    grid = Coming(there)
    left = strategy._identities.of(grid, [])[1002]
    trained(strategy, grid, 6)
    assert left in strategy._training.population.names  # not online for three rounds, 4 to 6
    trained(strategy, grid, 1)
    population = strategy._training.population
    assert len(population.names) == N - 1
    assert left not in population.names
    assert population.checkpoint.state.written.tolist() == [7] * (N - 1)
    assert population.clients.seen.tolist() == [7] * (N - 1)


def test_a_round_without_replies_is_a_round():
    there = table(6)
    there[3] = False
    strategy = FedStale("mifa", fraction_evaluate=0.0)
    result = strategy.start(Direct(N, quadratic(there)), start(), num_rounds=6)
    assert np.array_equal(result.arrays["w"].numpy(), simulated(strategy, there))
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 5, 6]


def test_without_training_nothing_changes():
    strategy = FedStale("auto", fraction_train=0.0, fraction_evaluate=0.0)
    assert strategy.start(Direct(N, quadratic()), start(), num_rounds=2).arrays == ArrayRecord()
    assert strategy.arrays is None


def test_a_client_that_does_not_answer_is_missing():
    strategy = FedStale("auto", fraction_evaluate=0.0)
    answer = quadratic()
    trained(strategy, Direct(N, lambda m, c: None if c.node_id == 1002 else answer(m, c)), 2)
    assert len(strategy.report.heard) == N - 1
    assert len(strategy.report.missing) == 1
    assert not strategy.report.refused


def test_an_app_may_change_the_model_between_rounds():
    strategy = FedStale("fedavg", fraction_evaluate=0.0)
    grid = Direct(N, lambda m, c: reply(m, {"w": m.content["arrays"]["w"].numpy() + 1}, {"num-examples": 1}))
    trained(strategy, grid, 1)
    again = strategy.start(grid, ArrayRecord({"w": Array(np.full(D, 5, np.float32))}), num_rounds=1)
    assert again.arrays["w"].numpy().tolist() == [6.0] * D
    with pytest.raises(BadInput, match="not the one that training began with: array 'w' must have the shape"):
        strategy.start(grid, ArrayRecord({"w": Array(np.zeros(2, np.float32))}), num_rounds=1)


@pytest.mark.parametrize("rule", ["auto", "ca-fed", "wait-minibatch"])
def test_a_restored_strategy_goes_on_with_the_same_bits(rule, tmp_path):
    there = table(9)
    there[:, :2], there[:2, 5], there[2, 5] = True, False, True  # two nodes, as Flower demands; and a newcomer
    whole, half, rest = (FedStale(rule, fraction_evaluate=0.0) for _ in range(3))
    end = trained(whole, Coming(there), 9)
    trained(half, Coming(there), 4)
    np.savez(tmp_path / "state.npz", **half.state_dict())
    rest.load_state_dict(np.load(tmp_path / "state.npz"))
    grid = Coming(there)
    grid.t = 4
    result = rest.start(grid, rest.arrays, num_rounds=5)  # clients are told the rounds 5 to 9
    assert np.array_equal(result.arrays["w"].numpy(), end)
    assert all(np.array_equal(a, rest.state_dict()[name]) for name, a in whole.state_dict().items())


def test_a_state_that_does_not_fit_is_refused():
    strategy = FedStale("auto", fraction_evaluate=0.0)
    with pytest.raises(BadInput, match="after a round"):
        strategy.state_dict()
    trained(strategy, Direct(N, quadratic()), 1)
    state = strategy.state_dict()
    strategy.configure_train(2, strategy.arrays, ConfigRecord(), Direct(N, quadratic()))
    with pytest.raises(BadInput, match="not before the first one or during one"):
        strategy.state_dict()
    with pytest.raises(BadInput, match=r"belongs to SelfTuning.*this strategy has FedAvg"):
        FedStale("fedavg").load_state_dict(state)
    assert '"SelfTuning(), Intervals(), Sgd(), no defence"' in str(
        state["about"]
    )  # another default is no other rule
    without = {name: a for name, a in state.items() if not name.startswith("state")}
    for nonsense in ({}, without, {"about": np.array("{")}, {"about": np.array("[]")}):
        with pytest.raises(BadInput, match="not the state of a Flower strategy"):
            FedStale("auto").load_state_dict(nonsense)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rule": "fedstail"}, "did you mean 'fedstale'"),
        *(({"rule": name}, "changes how clients train") for name in sorted(ELSEWHERE)),
        ({"rule": fs.FedStale}, "strategy must be an object such as FedAvg"),
        ({"rule": fs.strategies.MIFA(memory=fs.memory.Float32("rows"))}, "must have no folder"),
        ({"estimator": "known"}, "needs p, one probability per client"),
        ({"estimator": 0.5}, "estimator must be an object"),
        ({"server": 1.0}, "server must be an object"),
        ({"buffers": "*running_mean"}, "buffers must be a list of patterns"),
        ({"forget_after": 0}, "forget_after must be at least 1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_a_sentence(settings, sentence):
    with pytest.raises(BadInput, match=sentence):
        Uneven(**settings)


def test_the_estimator_is_that_of_the_recipe_unless_another_is_given():
    assert FedStale("ca-fed").rules.estimator.estimator == recipe("ca-fed").estimator  # type: ignore[attr-defined]
    assert FedStale("auto").rules.estimator.estimator == fs.Intervals()  # type: ignore[attr-defined]
    assert isinstance(
        FedStale("ca-fed", estimator="beta-bernoulli").rules.estimator.estimator,  # type: ignore[attr-defined]
        fs.estimators.BetaBernoulli,  # type: ignore[attr-defined]
    )


def test_given_probabilities_are_used():
    strategy = Uneven("unbiased", fraction_evaluate=0.0, estimator=fs.estimators.Known([0.5] * N))
    there = table(4)
    assert np.array_equal(trained(strategy, Direct(N, quadratic(there)), 4), simulated(strategy, there))


def test_failed_clients_are_named_with_their_error():
    strategy = FedStale("auto", fraction_evaluate=0.0)
    answer = quadratic()
    trained(strategy, Direct(N, lambda m, c: away(m, "no power") if c.node_id == 1003 else answer(m, c)), 1)
    assert strategy.report.refused == {"1003": "error 0: no power"}

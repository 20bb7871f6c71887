"""The strategy of an app that exists already defends itself, as a simulation does."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

import fedstale as fs
from fedstale.core import BadInput
from fedstale.engines import Serial
from fedstale.flower import FedStale
from tests.flower.direct import LOCAL, TASK, Direct, N, quadratic, reply, start, table


def lying(there, factor):
    """Client 0 sends a multiple of its update."""
    honest = quadratic(there)

    def answer(message, context):
        given, sent = honest(message, context), message.content["arrays"]["w"].numpy()
        if context.node_id == 1000 and not given.has_error():
            lie = sent + np.float32(factor) * (given.content["arrays"]["w"].numpy() - sent)
            given.content["arrays"]["w"] = Array(lie)
        return given

    return answer


@pytest.mark.parametrize("factor", [0.0, -1.0, -15.0, 1e4])
@pytest.mark.parametrize("rule", ["fedavg", "fedstale", "auto"])
def test_a_liar_is_refused_as_in_a_simulation(rule, factor):
    there, strategy = table(25, 0.7), FedStale(rule, fraction_evaluate=0.0, defence=True)
    found = strategy.start(Direct(N, lying(there, factor)), start(), num_rounds=25).arrays["w"].numpy()
    *_, last = fs.simulate(
        Serial(TASK, LOCAL), strategy.rules.strategy, fs.Trace(there), rounds=25, estimator=fs.Intervals(),
        defence=fs.defence.Defence(), liars=fs.defence.Liars((0,), factor),
    )  # fmt: skip
    np.testing.assert_allclose(found, last.params, atol=1e-4)
    assert last.checkpoint.defence.doubt[0] > 0.4 or factor >= 0


def one_round(lie, metrics, defence=fs.defence.Defence(), rule="fedavg"):
    """The strategy after a round in which client 3 answers with this update and these metrics."""

    def answer(message, context):
        mine = context.node_id == 1003
        update, told = (lie, metrics) if mine else (1, {"num-examples": 2})
        w = message.content["arrays"]["w"].numpy()
        arrays = {"w": w + np.float32(update), "bn.running_mean": np.full(1, 9.0 if mine else 1.0)}
        return reply(message, arrays, told)

    strategy = FedStale(rule, defence=defence)
    arrays = ArrayRecord({"w": Array(np.zeros(2, np.float32)), "bn.running_mean": Array(np.zeros(1))})
    grid = Direct(6, answer)
    sent = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    found, _ = strategy.aggregate_train(1, grid.send_and_receive(sent))
    return strategy, found


def test_a_refused_reply_is_reported_and_leaves_nothing():
    strategy, found = one_round(1e5, {"num-examples": 50})
    assert strategy.report.refused["1003"].startswith("its norm is out of proportion")
    assert len(strategy.report.heard) == 5
    assert found["w"].numpy().tolist() == [1, 1]
    assert found["bn.running_mean"].numpy().tolist() == [1]
    assert np.isnan(strategy._training.population.clients.weights[3])
    _, found = one_round(1e5, {"num-examples": 50}, defence=None)
    assert found["w"].numpy().min() > 1e4


def test_no_client_makes_itself_much_heavier_than_the_others():
    strategy, found = one_round(3, {"num-examples": 10**12})
    assert strategy._training.population.weights.tolist() == pytest.approx([2 / 30] * 3 + [20 / 30] + [2 / 30] * 2)
    assert found["w"].numpy().max() < 3
    light, _ = one_round(1, {"num-examples": 15})
    assert light._training.population.clients.weights.tolist() == [2, 2, 2, 15, 2, 2]


def test_the_defence_is_in_the_state():
    there = table(12)
    strategies = [FedStale("fedstale", fraction_evaluate=0.0, defence=True) for _ in range(3)]
    whole, half, rest = strategies
    whole.start(Direct(N, lying(there, -1.0)), start(), num_rounds=12)
    half.start(Direct(N, lying(there, -1.0)), start(), num_rounds=6)
    rest.load_state_dict(half.state_dict())
    rest.start(Direct(N, lying(there, -1.0)), rest.arrays, num_rounds=6)
    assert all(np.array_equal(a, rest.state_dict()[name]) for name, a in whole.state_dict().items())
    with pytest.raises(BadInput, match=r"this strategy has .*, no defence"):
        FedStale("fedstale").load_state_dict(half.state_dict())
    with pytest.raises(BadInput, match=r"defence must be an object such as Defence\(\), got 3"):
        FedStale("auto", defence=3)


def test_what_a_refused_client_says_of_its_weight_does_not_move_the_step():
    modest, bold = (one_round(1e5, {"num-examples": told}, rule="unbiased")[1]["w"].numpy() for told in (2, 50))
    np.testing.assert_array_equal(modest, bold)


def test_root_data_refuse_a_liar_in_the_first_round():
    def root(w):
        return -np.ones((1, len(w)))

    for lie, refused in ((-1, True), (1, False)):
        strategy, _ = one_round(lie, {"num-examples": 2}, fs.defence.Defence(root=root))
        assert bool(strategy.report.doubted) is refused
    other = FedStale("fedavg", defence=fs.defence.Defence(root=lambda w: np.ones((1, len(w)))))
    other.load_state_dict(strategy.state_dict())  # other samples are no other rule
    with pytest.raises(BadInput, match=r"defence.root is a number in simulations only: .*Root\(Net, x, y\), got 5"):
        FedStale("auto", defence=fs.defence.Defence(root=5))

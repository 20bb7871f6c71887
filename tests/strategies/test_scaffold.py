"""SCAFFOLD: its algorithm written out, the optimum it reaches, and what it needs to know."""

import copy

import numpy as np
import pytest

from fedstale.channels import Loss, Packets
from fedstale.core import BadInput, Local, Round, Work
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies import FedAvg
from fedstale.strategies.scaffold import Scaffold
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_strategy

N, D, K, LR = 5, 3, 6, 0.1
HALF = Bernoulli(0.5)


def different(weights=None):
    """Quadratics with different centres and curvatures: FedAvg's fixed point is not the optimum."""
    rng = stream(1, "different")
    return Quadratic(3 * rng.standard_normal((N, D)), rng.uniform(0.3, 3.0, (N, D)), weights=weights)


def distances(rule, task, *, rounds, participation=Bernoulli(1.0), **settings):
    engine = Serial(task, Local(LR, steps=K))
    return [
        task.evaluate(s.params)["distance"]
        for s in simulate(engine, rule, participation, rounds=rounds, **settings)
    ]


@pytest.mark.parametrize("weights", [None, [5, 1, 2, 1, 1]], ids=["equal", "weighted"])
def test_many_local_steps_at_a_constant_rate_reach_the_optimum_where_fedavg_does_not(weights):
    task = different(weights)
    assert distances(FedAvg(), task, rounds=200)[-1] > 0.05
    assert distances(Scaffold(), task, rounds=200)[-1] < 1e-4


def test_clients_that_come_and_go_reach_the_optimum():
    come_and_go = Bernoulli([0.9, 0.2, 0.5, 0.7, 0.4])
    task = different()
    assert np.mean(distances(FedAvg(), task, rounds=400, participation=come_and_go)[-100:]) > 0.3
    assert max(distances(Scaffold(), task, rounds=400, participation=come_and_go)[-100:]) < 1e-4


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_equals_the_algorithm_written_out(decay):
    """Algorithm 1, option II, in float64 with the clients' controls at the clients."""
    task, rounds = different(), 12
    x, c, controls = np.zeros(D), np.zeros(D), np.zeros((N, D))
    present = HALF.rows(N, stream(0, "participation"))
    for t in range(1, rounds + 1):
        S, lr = np.flatnonzero(next(present)), LR / (1 + decay * t)
        moved, learnt = np.zeros(D), np.zeros(D)
        for i in S:
            y = x.copy()
            for _ in range(K):
                y = y - lr * (task.curvature[i] * (y - task.centers[i]) - controls[i] + c)
            new = controls[i] - c + (x - y) / (K * lr)
            moved, learnt = moved + (y - x) / len(S), learnt + (new - controls[i]) / N
            controls[i] = new
        x, c = x + moved, c + learnt
    *_, last = simulate(Serial(task, Local(LR, steps=K, decay=decay)), Scaffold(), HALF, rounds=rounds)
    np.testing.assert_allclose(last.params, x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(last.checkpoint.state.rows, controls, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("channel", [Loss(0.3), Packets(1, 0.3)], ids=repr)
def test_the_mean_control_is_the_mean_of_the_controls_and_losses_do_no_harm(channel):
    task = different([5, 1, 2, 1, 1])
    run = simulate(Serial(task, Local(LR, steps=K)), Scaffold(), HALF, rounds=300, channel=channel)
    for s in run:
        rows, mean = s.checkpoint.state
        np.testing.assert_allclose(mean, task.weights.astype(np.float64) @ rows, atol=1e-9)
    assert task.evaluate(s.params)["distance"] < 1e-2


def test_what_did_not_arrive_changes_no_control_and_is_not_looked_at():
    ones, arrived = np.ones(2, np.float32), np.array([[True, False, True]])
    updates = np.array([[1, np.nan, 2]], np.float32)
    r = Round(
        1,
        np.zeros(3, np.float32),
        np.array([1]),
        updates,
        arrived,
        ones[:1],
        ones / 2,
        ones,
        work=Work(np.array([1]), np.array([1]), np.array([0.5])),
    )
    step, state = Scaffold().aggregate(Scaffold().init(2, 3), r)
    np.testing.assert_allclose(step, [1, 0, 2])
    np.testing.assert_allclose(state.rows, [[0, 0, 0], [-2, 0, -4]])
    np.testing.assert_allclose(state.mean, [-1, 0, -2])
    np.testing.assert_allclose(Scaffold().drift(state, np.array([0, 1])), [[-1, 0, -2], [1, 0, 2]])
    again = r._replace(
        arrived=np.array([[False, True, False]]), updates=np.array([[np.nan, 1, np.nan]], np.float32)
    )
    step, state = Scaffold().aggregate(state, again)
    np.testing.assert_allclose(step, [0, 1, 0])
    np.testing.assert_allclose(state.rows[1], [-2, -2, -4])
    np.testing.assert_allclose(state.mean, [-1, -1, -2])


def test_keeps_the_contract_of_a_strategy():
    check_strategy(Scaffold())


def test_without_drift_the_first_round_is_fedavg():
    task = different()
    assert distances(Scaffold(), task, rounds=1) == distances(FedAvg(), task, rounds=1)
    assert distances(Scaffold(), task, rounds=2) != distances(FedAvg(), task, rounds=2)


def test_resumed():
    engine = Serial(different(), Local(LR, steps=K))
    whole = [copy.deepcopy(s) for s in simulate(engine, Scaffold(), HALF, rounds=10)]
    rest = list(simulate(engine, Scaffold(), HALF, rounds=10, start=copy.deepcopy(whole[4].checkpoint)))
    for one, two in zip(whole[5:], rest, strict=True):
        assert np.array_equal(one.params, two.params)


def test_a_round_that_does_not_say_how_far_clients_went_is_refused():
    ones = np.ones(2, np.float32)
    r = Round(1, ones, np.array([0]), ones[None], np.array([[True]]), ones[:1], ones, ones)
    with pytest.raises(
        BadInput, match=r"^Scaffold needs the sum of the local rates \(K lr\) of each client in Round.work$"
    ):
        Scaffold().aggregate(Scaffold().init(2, 2), r)

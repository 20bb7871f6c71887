"""FedAWE: the algorithm written out with the models at the clients, and the point where its authors evaluate."""

import numpy as np
import pytest

from fedstale.core import NOBODY, BadInput, Local, Round
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies import FedAvg, FedAWE
from fedstale.tasks.quadratic import Quadratic

N, D, K, LR = 5, 3, 4, 0.05
RARE = Bernoulli([0.9, 0.2, 0.5, 0.1, 0.4])
RNG = stream(1, "different")
TASK = Quadratic(3 * RNG.standard_normal((N, D)), RNG.uniform(0.3, 3.0, (N, D)))


@pytest.mark.parametrize("echo", [1.0, 0.5])
def test_equals_the_algorithm_written_out(echo):
    """Rounds counted from 0, and -1 for the last visit of a client that never came."""
    w, rounds = TASK.init(0).astype(np.float64), 25
    x, τ = np.tile(w, (N, 1)), np.full(N, -1)
    present = RARE.rows(N, stream(0, "participation"))
    for t in range(rounds):
        S = np.flatnonzero(next(present))
        moved = []
        for i in S:
            y = x[i].copy()
            for _ in range(K):
                y = y - LR * TASK.curvature[i] * (y - TASK.centers[i])
            moved.append(x[i] + echo * (t - τ[i]) * (y - x[i]))
        if len(S):
            w = np.mean(moved, axis=0)
            x[S], τ[S] = w, t
    *_, last = simulate(Serial(TASK, Local(LR, steps=K)), FedAWE(echo), RARE, rounds=rounds)
    np.testing.assert_allclose(last.params, w, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        FedAWE(echo).point(last.checkpoint.state, last.params), x.mean(axis=0), rtol=1e-4, atol=1e-4
    )


def test_the_origin_is_not_that_of_somebody_else():
    w, none = np.ones(D, np.float32), np.zeros((0, D), np.float32)
    rule, weights = FedAWE(), np.full(N, 1 / N, np.float32)
    r = Round(1, w, NOBODY, none, none > 0, none[:, 0], weights, weights)
    _, state = rule.aggregate(rule.init(N, D), r)
    w += 1
    assert rule.starts(state, np.array([0]), w).tolist() == [[1, 1, 1]]


def test_with_everybody_there_it_is_fedavg():
    engine, everybody = Serial(TASK, Local(LR, steps=K)), Bernoulli(1.0)
    paths = [[s.params for s in simulate(engine, rule, everybody, rounds=10)] for rule in (FedAWE(), FedAvg())]
    np.testing.assert_allclose(*paths, rtol=1e-5, atol=1e-6)


def test_before_the_first_round_the_point_is_where_the_model_is():
    params = np.ones(D, np.float32)
    assert FedAWE().point(FedAWE().init(N, D), params) is params


def test_an_echo_of_nothing_is_refused():
    with pytest.raises(BadInput, match="echo must be above 0"):
        FedAWE(0.0)

"""FedPBC: the algorithm written out, with every client training in every round."""

import numpy as np
import pytest

from fedstale.core import BadInput, Local
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies import FedAvg, FedPBC
from fedstale.tasks.quadratic import Quadratic

N, D, K, LR = 5, 3, 4, 0.05
RARE = Bernoulli([0.9, 0.2, 0.5, 0.1, 0.4])
RNG = stream(1, "different")
TASK = Quadratic(3 * RNG.standard_normal((N, D)), RNG.uniform(0.3, 3.0, (N, D)))


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_equals_the_algorithm_written_out(rate):
    w, rounds = TASK.init(0).astype(np.float64), 25
    x = np.tile(w, (N, 1))
    present = RARE.rows(N, stream(0, "participation"))
    for _ in range(rounds):
        S = np.flatnonzero(next(present))
        for i in range(N):
            y = x[i].copy()
            for _ in range(K):
                y = y - LR * TASK.curvature[i] * (y - TASK.centers[i])
            x[i] = x[i] + rate * (y - x[i])
        if len(S):
            w = x[S].mean(axis=0)
            x[S] = w
    *_, last = simulate(Serial(TASK, Local(LR, steps=K)), FedPBC(rate), RARE, rounds=rounds)
    np.testing.assert_allclose(last.params, w, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(last.checkpoint.state.rows, x, rtol=1e-4, atol=1e-4)


def test_with_everybody_there_it_is_fedavg():
    engine, everybody = Serial(TASK, Local(LR, steps=K)), Bernoulli(1.0)
    paths = [[s.params for s in simulate(engine, rule, everybody, rounds=10)] for rule in (FedPBC(), FedAvg())]
    np.testing.assert_allclose(*paths, rtol=1e-5, atol=1e-6)


def test_only_those_who_came_are_heard():
    for s in simulate(Serial(TASK, Local(LR, steps=K)), FedPBC(), RARE, rounds=5):
        assert s.clients.tolist() == s.available.tolist()
        assert len(s.losses) == len(s.clients)


def test_a_rate_of_zero_is_refused():
    with pytest.raises(BadInput, match="rate must be above 0, got 0"):
        FedPBC(0.0)

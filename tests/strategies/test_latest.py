"""FedLaAvg and anarchic averaging: their formulas written out, and where MIFA and FedAvg equal them."""

import numpy as np
import pytest

from fedstale.core import BadInput, Local
from fedstale.core.rng import stream
from fedstale.core.schedules import UniformSteps
from fedstale.engines import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.simulate.servers import Sgd
from fedstale.strategies import AFACD, AFACS, MIFA, FedAvg, FedLaAvg
from fedstale.tasks.quadratic import Quadratic

N, D, LR = 5, 3, 0.05
TASK = Quadratic(3 * stream(1, "centers").standard_normal((N, D)), noise=0.0)
RARE = Bernoulli([0.9, 0.7, 0.5, 0.8, 0.4])


def trained(rule, rounds=25, local=Local(LR, steps=4), lr=1.0):
    return list(simulate(Serial(TASK, local), rule, RARE, rounds=rounds, server=Sgd(lr)))


def test_fedlaavg_trains_who_waited_longest_and_steps_with_everybody():
    present, w = RARE.rows(N, stream(0, "participation")), TASK.init(0).astype(np.float64)
    last, h = [0] * N, np.zeros((N, D))
    for s in trained(FedLaAvg(clients=2)):
        there = np.flatnonzero(next(present)).tolist()
        chosen = sorted(sorted(there, key=lambda i: (last[i], i))[:2])
        assert s.chosen.tolist() == chosen
        for i in chosen:
            x = w.copy()
            for _ in range(4):
                x -= LR * (x - TASK.centers[i])
            h[i], last[i] = x - w, s.t
        w = w + h.mean(axis=0)
        np.testing.assert_allclose(s.params, w, rtol=1e-4, atol=1e-5)


def test_fedlaavg_that_may_train_all_is_mifa_to_the_bit():
    for one, other in zip(trained(FedLaAvg(clients=N)), trained(MIFA()), strict=True):
        np.testing.assert_array_equal(one.params, other.params)


def test_with_equal_work_afa_cs_is_mifa_and_afa_cd_fedavg_at_a_server_rate_of_k():
    for rule, equal in ((AFACS(), MIFA()), (AFACD(), FedAvg())):
        for one, other in zip(trained(rule, lr=4.0), trained(equal), strict=True):
            np.testing.assert_allclose(one.params, other.params, rtol=1e-4, atol=1e-5)


def test_anarchic_updates_count_per_step():
    local = Local(LR, work=UniformSteps(1, 6))
    present = RARE.rows(N, stream(0, "participation"))
    w, v, G = TASK.init(0).astype(np.float64), TASK.init(0).astype(np.float64), np.zeros((N, D))

    def mean_gradient(start, i, t):
        K, x, total = UniformSteps(1, 6).steps(i, t, stream(0, "work", t, i)), start.copy(), np.zeros(D)
        for _ in range(K):
            g = x - TASK.centers[i]
            x, total = x - LR * g, total + g
        return total / K

    for one, other in zip(trained(AFACD(), 12, local, 3.0), trained(AFACS(), 12, local, 3.0), strict=True):
        there = np.flatnonzero(next(present)).tolist()
        if there:
            w = w - 3 * LR * np.mean([mean_gradient(w, i, one.t) for i in there], axis=0)
        for i in there:
            G[i] = mean_gradient(v, i, one.t)
        v = v - 3 * LR * G.mean(axis=0)
        np.testing.assert_allclose(one.params, w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(other.params, v, rtol=1e-4, atol=1e-5)


def test_afa_cd_is_blind_to_the_weights_and_afa_cs_is_not():
    uneven = Quadratic(TASK.centers, weights=[1, 2, 3, 4, 5])
    for rule, same in ((AFACD(), True), (AFACS(), False)):
        runs = [[*simulate(Serial(t, Local(LR, steps=4)), rule, RARE, rounds=5)][-1].params for t in (TASK, uneven)]
        assert np.array_equal(*runs) == same


def test_settings_that_cannot_be_used():
    with pytest.raises(BadInput, match=r"^clients must be at least 1, got 0$"):
        FedLaAvg(clients=0)

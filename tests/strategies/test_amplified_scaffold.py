"""Amplified SCAFFOLD: the algorithm written out, its limit, and groups that take turns."""

import numpy as np
import pytest

from fedstale.core import Local
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.participation import Bernoulli, Cyclic
from fedstale.simulate import simulate
from fedstale.strategies import Amplified, AmplifiedScaffold, Scaffold
from fedstale.tasks.quadratic import Quadratic

N, D, K, LR = 4, 3, 5, 0.05
HALF = Bernoulli(0.5)


def different():
    rng = stream(1, "different")
    return Quadratic(3 * rng.standard_normal((N, D)), rng.uniform(0.3, 3.0, (N, D)))


def last_of(rule, rounds, participation=HALF):
    *_, last = simulate(Serial(different(), Local(LR, steps=K)), rule, participation, rounds=rounds)
    return last


@pytest.mark.parametrize(("period", "factor"), [(1, 1.0), (3, 1.5), (4, 0.7)])
def test_equals_the_algorithm_written_out(period, factor):
    """In float64, with controls and sums of raw gradients at the clients."""
    task, rounds = different(), 10
    x, start, c, controls = np.zeros(D), np.zeros(D), np.zeros(D), np.zeros((N, D))
    gathered, counts = np.zeros((N, D)), np.zeros(N)
    present = HALF.rows(N, stream(0, "participation"))
    for t in range(1, rounds + 1):
        S, moved = np.flatnonzero(next(present)), np.zeros(D)
        for i in S:
            y = x.copy()
            for _ in range(K):
                raw = task.curvature[i] * (y - task.centers[i])
                gathered[i], counts[i] = gathered[i] + raw, counts[i] + 1
                y = y - LR * (raw - controls[i] + c)
            moved += (y - x) / len(S)
        x = x + moved
        if t % period == 0:
            x = start + factor * (x - start)
            start = x
            for i in np.flatnonzero(counts):
                controls[i] = gathered[i] / counts[i]
            c, gathered, counts = controls.mean(axis=0), np.zeros((N, D)), np.zeros(N)
    last = last_of(AmplifiedScaffold(period, factor), rounds)
    np.testing.assert_allclose(last.params, x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(last.checkpoint.state.rows, controls, rtol=1e-3, atol=1e-3)


def test_period_1_and_factor_1_are_scaffold():
    np.testing.assert_allclose(
        last_of(AmplifiedScaffold(1, 1.0), 20).params, last_of(Scaffold(), 20).params, rtol=1e-4, atol=1e-5
    )


def test_groups_that_take_turns_reach_the_optimum_where_amplified_fedavg_stops_beside_it():
    task, turns = different(), Cyclic(groups=2, on=2, off=2)
    controlled = last_of(AmplifiedScaffold(4, 1.2), 400, turns).params
    plain = last_of(Amplified(4, 1.2), 400, turns).params
    assert task.evaluate(plain)["distance"] > 10 * task.evaluate(controlled)["distance"]

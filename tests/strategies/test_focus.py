"""FOCUS: the push-pull algorithm written out, the optimum that it reaches, and what it asks of local training."""

from itertools import pairwise

import numpy as np
import pytest

from fedstale.core import BadInput, Local
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.participation import Bernoulli, Trace
from fedstale.simulate import simulate
from fedstale.strategies import FOCUS, FedAvg
from fedstale.tasks.quadratic import Quadratic

N, D, LR = 4, 3, 0.01
RARE = Bernoulli([0.9, 0.2, 0.5, 0.4])
RNG = stream(1, "different")
TASK = Quadratic(3 * RNG.standard_normal((N, D)), RNG.uniform(0.3, 3.0, (N, D)))


def last_of(rule, local, rounds):
    *_, last = simulate(Serial(TASK, local), rule, RARE, rounds=rounds)
    return last


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_equals_the_algorithm_written_out(steps):
    """Each client keeps its last gradient and sends how it has changed; the server keeps the sum."""
    w, Y, g = TASK.init(0).astype(np.float64), np.zeros(D), np.zeros((N, D))
    present = RARE.rows(N, stream(0, "participation"))
    for _ in range(30):
        for i in np.flatnonzero(next(present)):
            x, y = w.copy(), np.zeros(D)
            for k in range(steps):
                if k > 0:
                    x = x - LR * y
                gradient = TASK.curvature[i] * (x - TASK.centers[i])
                y, g[i] = y + gradient - g[i], gradient
            Y = Y + y
        w = w - LR * Y
    last = last_of(FOCUS(), Local(LR, steps=steps), 30)
    np.testing.assert_allclose(last.params, w, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(last.checkpoint.state.rows, g, rtol=1e-3, atol=1e-3)


def test_a_round_without_clients_steps_on_as_printed_and_waits_as_released():
    rows = np.zeros((4, N), bool)
    rows[0] = rows[3] = True
    for rule, moved in ((FOCUS(), [True] * 4), (FOCUS(released=True), [True, False, False, True])):
        w = [
            TASK.init(0),
            *(
                s.params
                for s in simulate(Serial(TASK, Local(LR)), rule, Trace(rows, clients_first=False), rounds=4)
            ),
        ]
        assert [not np.array_equal(a, b) for a, b in pairwise(w)] == moved


def test_any_participation_ends_at_the_optimum_where_fedavg_does_not():
    local = Local(LR, steps=5)
    assert TASK.evaluate(last_of(FedAvg(), local, 800).params)["distance"] > 0.1
    assert TASK.evaluate(last_of(FOCUS(), local, 800).params)["distance"] < 1e-3


def test_other_local_training_is_refused():
    with pytest.raises(BadInput, match="the last gradient needs plain SGD"):
        last_of(FOCUS(), Local(LR, steps=5, momentum=0.9), 2)

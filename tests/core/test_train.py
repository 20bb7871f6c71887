"""Jobs with a start per client, and jobs that ask for the last gradient."""

import numpy as np
import pytest

from fedstale.core import Job, Local, train
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.tasks.quadratic import Quadratic

LOCAL = Local(0.1, steps=3)
TASK = Quadratic.random(4, 3, seed=1, noise=0.2)


def job(**more):
    return Job(TASK.init(0), np.array([0, 2, 3]), 7, 5, LOCAL)._replace(**more)


def test_a_start_per_client_is_a_job_per_client():
    starts, pull = stream(0, "starts").standard_normal((2, 3, 3)).astype(np.float32)
    engine = Serial(TASK, LOCAL)
    plain, reply, nobody = train(
        engine, [job(), job(starts=starts, drift=pull), job(starts=starts[:0], clients=np.arange(0))]
    )
    np.testing.assert_array_equal(plain.updates, engine.train([job()])[0].updates)
    assert nobody.updates.shape == (0, 3)
    for k, client in enumerate([0, 2, 3]):
        alone = engine.train([job(params=starts[k], clients=np.array([client]), drift=pull[k : k + 1])])[0]
        np.testing.assert_array_equal(reply.updates[k], alone.updates[0])
        assert reply.losses[k] == alone.losses[0]
    assert reply.work is not None
    assert reply.work.steps.tolist() == [3, 3, 3]


@pytest.mark.parametrize("steps", [1, 4])
def test_the_last_gradient_is_that_of_the_last_step(steps):
    exact = Quadratic.random(4, 3, seed=1)
    local, pull = Local(0.1, steps=steps), np.full((3, 3), 0.5, np.float32)
    asked = job(local=local, last_gradient=True, drift=pull)
    reply = train(Serial(exact, local), [asked])[0]
    assert reply.gradients is not None
    for k, i in enumerate(asked.clients):
        w = asked.params.astype(np.float64)
        for _ in range(steps):
            gradient = exact.curvature[i] * (w - exact.centers[i])
            w = w - 0.1 * (gradient + 0.5)
        np.testing.assert_allclose(reply.gradients[k], gradient, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(reply.updates[k], w - asked.params, rtol=1e-4, atol=1e-5)

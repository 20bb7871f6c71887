"""FedNova: its formula written out, its limit, and the bias that it removes."""

import numpy as np
import pytest

from fedstale.core import BadInput, Local, Round, Work
from fedstale.engines import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies import FedAvg, FedNova
from fedstale.tasks.quadratic import Quadratic

UPDATES = np.array([[1.0, 2.0], [3.0, -4.0], [0.5, 8.0]], np.float32)
WEIGHTS = np.array([0.2, 0.3, 0.1, 0.4], np.float32)


def played(steps, arrived=np.ones((3, 1), bool)):
    work = None if steps is None else Work(np.array(steps), np.array(steps), np.array(steps) * 0.1)
    some, ones = np.array([0, 1, 3]), np.ones(4, np.float32)
    r = Round(1, np.zeros(2, np.float32), some, UPDATES, arrived, ones[:3], WEIGHTS, ones, work)
    return FedNova().aggregate(None, r)[0], FedAvg().aggregate(None, r)[0]


def test_an_update_counts_per_step_and_the_step_has_the_mean_length():
    a, τ = np.array([0.2, 0.3, 0.4]), np.array([1, 2, 8])
    due = sum(a[k] * UPDATES[k] / τ[k] for k in range(3)) / a.sum() * (a @ τ / a.sum())
    np.testing.assert_allclose(played(τ)[0], due, rtol=1e-6)


def test_with_equal_work_it_is_fedavg():
    nova, plain = played([7, 7, 7])
    np.testing.assert_allclose(nova, plain, rtol=1e-6)


def test_coordinates_that_did_not_arrive_are_not_averaged():
    arrived = np.array([[True, False], [True, True], [False, True]])
    nova, plain = played([5, 5, 5], arrived)
    np.testing.assert_allclose(nova, plain, rtol=1e-6)


def test_work_that_nobody_tells_is_refused():
    with pytest.raises(BadInput, match="local steps of each client"):
        played(None)


def test_unequal_work_moves_fedavg_away_from_the_optimum_and_not_fednova():
    task = Quadratic(np.array([[-1.0], [1.0]]), np.ones((2, 1)))

    def distance(rule):
        local = Local(0.01, work=lambda client, t, rng: 1 if client else 20)
        *_, last = simulate(Serial(task, local), rule, Bernoulli(1.0), rounds=400)
        return task.evaluate(last.params)["distance"]

    assert distance(FedAvg()) > 0.5
    assert distance(FedNova()) < 0.12

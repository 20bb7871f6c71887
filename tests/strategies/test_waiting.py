"""Wait: nothing moves for a period, and then everybody counts once."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstale.core import BadInput, Local, Round
from fedstale.engines import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies.waiting import Wait
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_strategy

N, D = 5, 3
a = np.array([0.3, 0.25, 0.2, 0.15, 0.1], np.float32)
ones = np.ones(N, np.float32)


def rounds_of(seed, count, whole):
    """Rounds with random clients, updates and masks."""
    rng = np.random.default_rng(seed)
    for t in range(1, count + 1):
        clients = np.flatnonzero(rng.random(N) < 0.5)
        arrived = rng.random((len(clients), 1 if whole else D)) < 0.7
        clients, arrived = clients[arrived.any(axis=1)], arrived[arrived.any(axis=1)]
        updates = np.where(arrived, rng.standard_normal((len(clients), D)), np.nan).astype(np.float32)
        yield Round(t, np.zeros(D, np.float32), clients, updates, arrived, ones[clients], a, ones)


def average(rounds):
    """Coordinate by coordinate: the mean of each client's own, then the weighted mean over clients."""
    step = np.zeros(D)
    for j in range(D):
        own = {}
        for r in rounds:
            for i, Δ, arrived in zip(
                r.clients, r.updates, np.broadcast_to(r.arrived, r.updates.shape), strict=True
            ):
                if arrived[j]:
                    own.setdefault(i, []).append(float(Δ[j]))
        if own:
            step[j] = sum(a[i] * np.mean(v) for i, v in own.items()) / sum(a[i] for i in own)
    return step


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), period=st.integers(1, 5), whole=st.booleans())
def test_one_step_a_period_with_the_average_of_everybody(seed, period, whole):
    rule, rounds = Wait(period), list(rounds_of(seed, 2 * period + 1, whole))
    state, steps = rule.init(N, D), []
    for r in rounds:
        step, state = rule.aggregate(state, r)
        steps.append(step)
    for k in range(2):
        last = period * (k + 1) - 1
        assert not np.any(steps[period * k : last])
        np.testing.assert_allclose(steps[last], average(rounds[period * k : last + 1]), atol=1e-5)


@pytest.mark.parametrize("first_whole", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_whole_and_partial_updates_in_one_period(first_whole, seed):
    rule = Wait(4)
    rounds = [*rounds_of(seed, 2, first_whole), *rounds_of(seed + 1, 2, not first_whole)]
    state = rule.init(N, D)
    for r in rounds:
        step, state = rule.aggregate(state, r)
    np.testing.assert_allclose(step, average(rounds), atol=1e-5)


def test_keeps_the_contract_of_a_strategy():
    check_strategy(Wait(3))


def test_nobody_heard_is_no_step():
    rule = Wait(1)
    none = Round(
        1, np.zeros(D, np.float32), np.arange(0), np.zeros((0, D)), np.zeros((0, 1), bool), np.zeros(0), a, ones
    )
    step, _ = rule.aggregate(rule.init(N, D), none)
    assert not step.any()


def test_with_full_gradients_a_period_is_one_step_of_gradient_descent():
    """Clients come irregularly, each at least once in 30 rounds, and noise-free: exactly w - lr ∇F(w)."""
    task = Quadratic.random(N, D, seed=4)
    w, lr = np.zeros(D), 0.5
    run = simulate(Serial(task, Local(lr, steps=1)), Wait(30), Bernoulli([0.9, 0.3, 0.5, 0.7, 1.0]), rounds=90)
    for s in run:
        if s.t % 30 == 0:
            w = w - lr * np.mean(task.curvature * (w - task.centers), axis=0)
        np.testing.assert_allclose(s.params, w, atol=1e-5)


def test_resumed_in_the_middle_of_a_period():
    engine = Serial(Quadratic.random(N, D, seed=4, noise=1.0), Local(0.1, steps=1))
    whole = [copy.deepcopy(s) for s in simulate(engine, Wait(4), Bernoulli(0.5), rounds=12, seed=1)]
    start = copy.deepcopy(whole[5].checkpoint)
    rest = list(simulate(engine, Wait(4), Bernoulli(0.5), rounds=12, seed=1, start=start))
    for one, two in zip(whole[6:], rest, strict=True):
        assert np.array_equal(one.params, two.params)


def test_wrong_settings_are_refused():
    with pytest.raises(BadInput, match=r"^period must be at least 1, got 0$"):
        Wait(0)

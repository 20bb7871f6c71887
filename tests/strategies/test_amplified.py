"""Amplified: the closed form after a period, its limits, and a start from another run."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstale.channels import Packets
from fedstale.core import BadInput, Local
from fedstale.engines import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import Run, checked, first, simulate
from fedstale.simulate.servers import Sgd
from fedstale.strategies import FedAvg
from fedstale.strategies.amplified import Amplified
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_strategy

N, D = 6, 4
TASK = Quadratic.random(N, D, seed=3, noise=0.3)
ENGINE = Serial(TASK, Local(lr=0.02, steps=3))


def params(rule, rounds, **settings):
    """(rounds, d) where the model was after each round."""
    run = simulate(ENGINE, rule, Bernoulli(0.5), rounds=rounds, seed=5, **settings)
    return np.array([s.params for s in run], np.float64)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(period=st.integers(1, 6), factor=st.floats(0.1, 10))
def test_after_a_period_the_model_is_where_the_closed_form_says(period, factor):
    """FedAvg's path w_0, …, w_P, and then w_0 + η (w_P - w_0)."""
    start = TASK.init(5)
    plain, amplified = params(FedAvg(), period), params(Amplified(period, factor), period)
    np.testing.assert_array_equal(amplified[:-1], plain[:-1])
    np.testing.assert_allclose(amplified[-1], start + factor * (plain[-1] - start), atol=1e-5)


@settings(derandomize=True, deadline=None, max_examples=20)
@given(period=st.integers(1, 4), factor=st.floats(0.5, 4), rounds=st.integers(1, 13))
def test_period_after_period_equals_the_algorithm_written_out(period, factor, rounds):
    """Algorithm 1 in numpy: full participation, exact gradients, no engine and no simulation."""
    task = Quadratic.random(3, 2, seed=1)
    x, u, since = np.zeros(2), np.zeros(2), 0
    for _ in range(rounds):
        Δ = np.zeros(2)
        for i in range(3):
            y = x.copy()
            for _ in range(2):
                y -= 0.1 * task.curvature[i] * (y - task.centers[i])
            Δ += (y - x) / 3
        x, u, since = x + Δ, u + Δ, since + 1
        if since == period:
            x, u, since = x + (factor - 1) * u, np.zeros(2), 0
    engine = Serial(task, Local(lr=0.1, steps=2))
    *_, last = simulate(engine, Amplified(period, factor), Bernoulli(1.0), rounds=rounds)
    np.testing.assert_allclose(last.params, x, rtol=1e-4, atol=1e-5)


def test_keeps_the_contract_of_a_strategy():
    check_strategy(Amplified(3, 5.0))


@pytest.mark.parametrize("period", [1, 3])
def test_own_weights_are_those_of_a_task_that_has_them(period):
    q = [1, 2, 3, 4, 5, 6]
    other = Serial(Quadratic(TASK.centers, TASK.curvature, noise=0.3, weights=q), ENGINE.local)
    run = simulate(other, Amplified(period, 3.0), Bernoulli(0.5), rounds=5, seed=5)
    due = np.array([s.params for s in run], np.float64)
    np.testing.assert_allclose(params(Amplified(period, 3.0, q=q), 5), due, rtol=1e-5, atol=1e-6)
    for wrong in ([1.0] * 5, [0.0] * 6, [[1.0] * 5] * 2, [[[1.0] * 6]]):
        with pytest.raises(BadInput, match=r"^q must be "):
            params(Amplified(period, 3.0, q=wrong), 1)


def test_own_weights_of_every_round_begin_again_after_the_last():
    """Algorithm 1 with q_t^n that change from round to round, in numpy."""
    task, q = Quadratic.random(3, 2, seed=1), np.array([[1.0, 0, 0], [0, 3.0, 1.0]])
    x, u = np.zeros(2), np.zeros(2)
    for t in range(4):
        Δ = -0.1 * task.curvature * (x - task.centers)  # (n, d) one step of each
        step = q[t % 2] / q[t % 2].sum() @ Δ
        x, u = x + step, u + step
        if t % 2:
            x, u = x + 2.0 * u, np.zeros(2)
    engine = Serial(task, Local(lr=0.1, steps=1))
    *_, last = simulate(engine, Amplified(2, 3.0, q=q), Bernoulli(1.0), rounds=4)
    np.testing.assert_allclose(last.params, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("period", [1, 3, 50])
def test_factor_one_is_fedavg(period):
    np.testing.assert_array_equal(params(Amplified(period, 1.0), 10), params(FedAvg(), 10))


def test_period_one_is_two_sided_learning_rates():
    np.testing.assert_allclose(params(Amplified(1, 3.0), 8), params(FedAvg(), 8, server=Sgd(3.0)), atol=1e-5)


def test_updates_that_arrive_in_part_are_averaged_by_coordinate():
    channel, start = Packets(1, 0.6), TASK.init(5)
    plain, amplified = (params(rule, 4, channel=channel) for rule in (FedAvg(), Amplified(4, 5.0)))
    np.testing.assert_allclose(amplified[-1], start + 5 * (plain[-1] - start), atol=1e-5)


def test_a_period_starts_where_the_rule_does():
    """A run that goes on from another's parameters counts its own rounds."""
    *_, warm = simulate(ENGINE, FedAvg(), Bernoulli(0.5), rounds=4, seed=5)
    rule = Amplified(3, 5.0)
    run = checked(Run(ENGINE, rule, Bernoulli(0.5), rounds=9, seed=5))
    start = first(run)._replace(t=warm.t, params=warm.params)
    path, plain = params(rule, 9, start=start), params(FedAvg(), 7)
    np.testing.assert_array_equal(path[:2], plain[4:6])
    np.testing.assert_allclose(path[2], warm.params + 5 * (plain[6] - warm.params), atol=1e-5)


def test_resumed_in_the_middle_of_a_period():
    whole = [copy.deepcopy(s) for s in simulate(ENGINE, Amplified(4, 5.0), Bernoulli(0.5), rounds=10, seed=5)]
    rest = params(Amplified(4, 5.0), 10, start=copy.deepcopy(whole[5].checkpoint))
    np.testing.assert_array_equal(rest, np.array([s.params for s in whole[6:]]))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Amplified(0, 2.0), "^period must be at least 1, got 0$"),
        (lambda: Amplified(2, 0.0), "^factor must be above 0, got 0.0$"),
        (lambda: Amplified(2, float("nan")), "^factor must be above 0, got nan$"),
    ],
)
def test_wrong_settings_are_refused(make, sentence):
    with pytest.raises(BadInput, match=sentence):
        make()

"""Schedules of the learning rate and workloads."""

import numpy as np
import pytest

from fedstale import theory
from fedstale.core import BadInput, Local
from fedstale.core.rng import stream
from fedstale.core.schedules import Cosine, InverseSteps, StepDecay, UniformSteps, Warmup
from fedstale.engines import Serial, make
from fedstale.engines.batched.engine import require_supported
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies import FedAvg
from fedstale.tasks.quadratic import Quadratic


def rates(schedule: object, rounds: int) -> list[float]:
    local = Local(2.0, schedule=schedule)  # type: ignore[arg-type]
    return [local.rate(t) for t in range(1, rounds + 1)]


def test_a_cosine_falls_from_one_to_its_floor_and_stays_there() -> None:
    assert rates(Cosine(5, floor=0.2), 7) == pytest.approx([2, 1.7656854, 1.2, 0.6343146, 0.4, 0.4, 0.4])


def test_steps_and_warmup() -> None:
    assert rates(StepDecay(2, 0.5), 5) == [2, 2, 1, 1, 0.5]
    assert rates(Warmup(4), 6) == [0.5, 1, 1.5, 2, 2, 2]
    assert rates(Warmup(2, then=StepDecay(1, 0.5)), 5) == [1, 2, 2, 1, 0.5]


def test_a_decay_makes_the_rates_of_theorem_431() -> None:
    L, μ = 3.0, 0.5
    problem = theory.Lossy(smoothness=L, convexity=μ, noise=0.0, gap=0.1, stochastic_gradient=1.0, steps=1)
    offset = 8 * L / μ - 1
    local = Local(lr=2 / (μ * offset), decay=1 / offset)
    assert [local.rate(t) for t in (1, 2, 50)] == pytest.approx([theory.upga_rate(problem, t) for t in (1, 2, 50)])


def test_rates_by_local_step_are_those_of_theorem_531_and_train_so() -> None:
    nodes = theory.Exits(
        smoothness=1.0, convexity=0.5, noise=[1.0], gap=0.1, diameter=1.0, largest_loss=1.0, steps=3
    )
    γ, μ, K = 15.0, 0.5, 3  # max{8κ, K} - 1 with κ = 2
    local = Local(lr=2 / (μ * (γ + 1)), steps=K, schedule=InverseSteps(γ, K))
    for t in (1, 2, 7):
        assert [local.rate(t, k) for k in range(K)] == pytest.approx(
            [theory.exit_rate(nodes, t, k) for k in range(K)]
        )
        assert local.rates(t, np.array([1, K])) == pytest.approx(
            [local.rate(t), sum(local.rate(t, k) for k in range(K))]
        )
    task = Quadratic([[3.0, 4.0]], start=[0.0, 0.0])
    w = np.zeros(2)
    for s in simulate(Serial(task, local), FedAvg(), Bernoulli(1.0), rounds=3):
        for k in range(K):
            w = w - 2 / (μ * (γ + (s.t - 1) * K + k + 1)) * (w - [3.0, 4.0])
        np.testing.assert_allclose(s.params, w, rtol=1e-5)
    *_, other = simulate(make("batched", task, local), FedAvg(), Bernoulli(1.0), rounds=3)
    np.testing.assert_array_equal(other.params, s.params)
    with pytest.raises(BadInput, match="got rates by local step"):
        require_supported(local)


def test_a_function_is_a_schedule_and_multiplies_the_decay() -> None:
    local = Local(1.0, decay=1.0, schedule=lambda t: 0.5)
    assert [local.rate(t) for t in (1, 3)] == [0.25, 0.125]
    with pytest.raises(BadInput, match=r"^a schedule's factor must be at least 0 and finite, got nan in round 1$"):
        Local(1.0, schedule=lambda t: float("nan")).rate(1)
    with pytest.raises(BadInput, match=r"^a schedule's factor must be at least 0 and finite, got None in round 1$"):
        Local(1.0, schedule=lambda t: None).rate(1)  # type: ignore[arg-type,return-value]


def test_work_below_one_step_is_refused() -> None:
    rng = stream(0, "steps")
    assert {UniformSteps(2, 4).steps(0, 1, rng) for _ in range(100)} == {2, 3, 4}, "both ends are drawn"
    with pytest.raises(BadInput, match="at least 1 step, got 0 for client 4 in round 2"):
        Local(1.0, work=lambda client, t, rng: 0).alone(4, 2, stream(0, "work"))
    with pytest.raises(BadInput, match="1 ≤ low ≤ high, got 3 and 2"):
        UniformSteps(3, 2)
    assert Local(1.0, work=UniformSteps(3, 3)).alone(0, 1, np.random.default_rng()) == Local(1.0, steps=3)

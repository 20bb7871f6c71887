"""Theorem 5.3.1 of the thesis with the constants of its appendix, in plain Python and step by step."""

import math
from typing import Any

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.theory import Exits, exit_bound, exit_constant, exit_rate

L, μ, Γ, DIAM, M, K = 2.0, 0.4, 0.3, 1.5, 2.5, 3
D, Λ, TARGET, PDIM = [100, 300, 50], [0.6, 0.4], [0.9, 0.1], [10.0, 40.0]
p = [[1.0, 0.0], [0.2, 0.8], [0.5, 0.5]]
σ2 = [[1.0, 9.0], [2.0, 3.0], [0.5, 4.0]]
problem = Exits(L, μ, noise=σ2, gap=Γ, diameter=DIAM, largest_loss=M, steps=K)


def test_b_term_by_term() -> None:
    noise = sampling = most = 0.0
    for i in range(3):
        for e in range(2):
            if p[i][e] == 0:
                continue
            held = sum(D[j] for j in range(3) if p[j][e] > 0)
            α = 0.7 * Λ[e] * D[i] / held
            G = σ2[i][e] + (L * DIAM) ** 2
            noise += α**2 * σ2[i][e]
            sampling += 4 * K**2 * α**2 * (1 - p[i][e]) / p[i][e] * G
            most = max(most, G)
    found = exit_constant(problem, D, p, Λ, server_lr=0.7)
    assert tuple(found) == pytest.approx((noise, 6 * L * Γ, 8 * (K - 1) ** 2 * most, sampling))


def test_theorem_5_3_1_term_by_term() -> None:
    T, B = 40, exit_constant(problem, D, p, Λ).total()
    γ = max(8 * L / μ, K) - 1
    found = exit_bound(problem, D, p, Λ, target=TARGET, dimensions=PDIM, rounds=T, distance=3.0)
    assert tuple(found) == pytest.approx(
        (
            2 * (0.6 * M * 320 * math.sqrt(10 / 450) + 0.4 * M * 320 * math.sqrt(40 / 350)),
            2 * 2 * M * 0.3,
            L / μ / (γ + K * T) * (2 * B / μ + μ * (γ + 1) / 2 * 9.0),
        )
    )


@pytest.mark.parametrize("steps", [3, 100])
def test_the_bound_solves_the_recursion_of_its_proof(steps: int) -> None:
    """Δ ← (1 - η μ) Δ + η² B at every local step, and F - F* ≤ L/2 Δ."""
    here = Exits(L, μ, noise=σ2, gap=Γ, diameter=DIAM, largest_loss=M, steps=steps)
    B, Δ = exit_constant(here, D, p, Λ).total(), 9.0
    for t in range(1, 40):
        for k in range(steps):
            η = exit_rate(here, t, k)
            Δ = (1 - η * μ) * Δ + η**2 * B
        bound = exit_bound(here, D, p, Λ, target=TARGET, dimensions=PDIM, rounds=t, distance=3.0)
        assert bound.optimisation * (1 + 1e-12) >= L / 2 * Δ


def test_rates_fall_and_training_an_exit_more_often_costs_less() -> None:
    rare = exit_constant(problem, D, [[1.0, 0.0], [0.2, 0.8], [0.9, 0.1]], Λ)
    assert rare.sampling > exit_constant(problem, D, p, Λ).sampling
    assert exit_rate(problem, 1, 0) == pytest.approx(2 / (μ * 8 * L / μ))  # γ + 1 = 8 κ
    assert exit_rate(problem, 2, 1) == pytest.approx(2 / (μ * (8 * L / μ + 4)))
    assert exit_constant(problem, D, np.ones((3, 2)), Λ).sampling == 0


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda: exit_constant(problem, D, [[1.0, 0.0]] * 3, Λ), "every exit must be trained"),
        (lambda: exit_constant(problem, D[:2], p, Λ), "nodes × exits"),
        (lambda: exit_constant(problem, D, [[1.5, 0.5]] * 3, Λ), "p must be probabilities"),
        (lambda: exit_constant(problem, D, p, Λ, server_lr=[-1, 0.5]), "server_lr must be a number"),  # type: ignore[arg-type]
        (
            lambda: exit_constant(problem, D, p, Λ, server_lr=np.inf),
            "server_lr must be above 0 and finite, got inf",
        ),
        (lambda: Exits(1.0, 1.0, [], 0.0, 1.0, 1.0, 1), "noise must be at least 0 and finite"),
        (lambda: exit_rate(problem, 1, 3), "k must be below 3"),
        (lambda: Exits(1.0, 2.0, 0.0, 0.0, 1.0, 1.0, 1), "at most smoothness"),
        (
            lambda: exit_bound(problem, D, p, Λ, target=TARGET, dimensions=[1.0], rounds=1, distance=1.0),
            "one per exit",
        ),
        (
            lambda: exit_bound(problem, D, p, Λ, target=[1.0], dimensions=PDIM, rounds=1, distance=1.0),
            "target must",
        ),
        (
            lambda: exit_bound(problem, D, p, Λ, target=[7.0, 18.0], dimensions=PDIM, rounds=1, distance=1.0),
            r"weights must sum to 1 .*, got sums of \[1.0, 25.0\]",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(broken: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        broken()

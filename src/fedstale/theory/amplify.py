"""Which learning rate, amplification and period the analysis of amplified updates asks for, and what it promises.

[A] Wang and Ji, A Unified Analysis of Federated Learning with Arbitrary Client Participation, 2022. Its bounds are
O(·): the terms here are what stands inside, each with the factor 1.
"""

from __future__ import annotations  # `help` shows the names of hints

import math
from typing import NamedTuple

import numpy.typing as npt

from fedstale.core import Count, PositiveShare, arguments_checked, part, require
from fedstale.core.parts import NotNegativeFinite, PositiveFinite
from fedstale.theory.amplified import delta2
from fedstale.theory.checks import over, weights_of

__all__ = [
    "Amplification", "AmplifiedBound", "Amplify", "amplification", "amplified_bound", "amplified_rates",
    "corollary_bound", "regularized_bound", "stochastic_bound", "stochastic_period", "stochastic_rates",
]  # fmt: skip


@part
class Amplify:
    """What Theorem 3.1 of [A] assumes of the objective, of training and of the participation weights q."""

    smoothness: PositiveFinite  # L
    noise: NotNegativeFinite  # σ²
    excess: PositiveFinite  # F = f(x_0) - f*
    steps: Count  # I, local steps
    rounds: int  # T
    concentration: PositiveShare = 1.0  # ρ, root of the most Σ_n q_n² of a round: 1 / √S if S clients come

    def __post_init__(self) -> None:
        require(self.rounds >= 2, f"rounds must be at least 2, for a period of at most half, got {self.rounds}")


class Amplification(NamedTuple):
    """The settings of amplified updates."""

    client_lr: float  # γ
    factor: float  # η
    period: int  # P


class AmplifiedBound(NamedTuple):
    """What stands inside O(·) of a bound on min_t E‖∇f(x_t)‖², by cause."""

    start: float  # F, the first model, and what the choice of η adds to it
    within: float  # ν̃²
    between: float  # β̃²
    participation: float  # δ̃²(P), which no number of rounds makes smaller
    noise: float  # σ²

    def total(self) -> float:
        return sum(self)


@arguments_checked
def amplified_bound(
    problem: Amplify, settings: Amplification, *, within: NotNegativeFinite, between: NotNegativeFinite,
    participation: NotNegativeFinite,
) -> AmplifiedBound:  # fmt: skip
    """Theorem 3.1 of [A], (8), for any γ ≤ 1/(12LIP), γη ≤ 1/(LIP) and P ≤ T/2; ν̃², β̃² and δ̃²(P) are given.

    F/(γηIT) + γ²L²I²ν̃² + γ²L²I²P²β̃² + δ̃²(P) + (γ²L²I + γ²L²IPρ² + γηLρ²) σ².
    """
    (γ, η, P), L, I = settings, problem.smoothness, problem.steps  # noqa: E741
    _check_period(problem, P)
    most, slack = 1 / (L * I * P), 1 + 1e-9
    ok = 0 < γ <= most / 12 * slack
    require(ok, f"client_lr must be above 0 and at most 1/(12LIP) = {most / 12:.6g}, got {γ}")
    require(0 < γ * η <= most * slack, f"client_lr · factor must be at most 1/(LIP) = {most:.6g}, got {γ * η:.6g}")
    ρ2, drift = problem.concentration**2, (γ * L * I) ** 2
    noise = (γ * L) ** 2 * I + (γ * L) ** 2 * I * P * ρ2 + γ * η * L * ρ2
    return AmplifiedBound(
        problem.excess / (γ * η * I * problem.rounds), drift * within, drift * P**2 * between, participation,
        noise * problem.noise,
    )  # fmt: skip


@arguments_checked
def amplified_rates(problem: Amplify, period: int) -> Amplification:
    """γ = 1/(12LIP√T) and η = min{12P√(LIF)/(σρ), 12√T}, Corollary 3.2 of [A]: P need not grow with T."""
    _check_period(problem, period)
    wish = over(_factor(problem, period), math.sqrt(problem.noise))
    return Amplification(_rate(problem, period), min(wish, 12 * math.sqrt(problem.rounds)), period)


@arguments_checked
def stochastic_rates(problem: Amplify, period: int) -> Amplification:
    """γ = 1/(12LIP√T) and η = 12P√(LIF)/ρ, Corollary 3.3 of [A], which asks that √F/(ρ√(LIT)) ≤ 1/(LIP)."""
    _check_period(problem, period)
    γ, η = _rate(problem, period), _factor(problem, period)
    most = 1 / (problem.smoothness * problem.steps * period)
    require(γ * η <= most * (1 + 1e-9), f"√F/(ρ√(LIT)) must be at most 1/(LIP) = {most:.6g}, got {γ * η:.6g}")
    return Amplification(γ, η, period)


@arguments_checked
def corollary_bound(
    problem: Amplify, period: int, *, within: NotNegativeFinite, between: NotNegativeFinite,
    participation: NotNegativeFinite, stochastic: bool = False,
) -> AmplifiedBound:  # fmt: skip
    """(9) of [A] with the rates of Corollary 3.2, or (10) with those of 3.3 if `stochastic`.

    (9) is σρ√(LF)/√(IT) + LPF/T + ν̃²/(P²T) + β̃²/T + δ̃²(P) + σ²/(IPT); (10) has (1 + σ²) for σ and no LPF/T. The
    first term stands under `noise` in (9), its 1 under `start` in (10).
    """
    (stochastic_rates if stochastic else _check_period)(problem, period)  # refuses what the corollary does
    L, I, T, P, σ2 = problem.smoothness, problem.steps, problem.rounds, period, problem.noise  # noqa: E741
    sgd = problem.concentration * math.sqrt(L * problem.excess / (I * T))
    start = sgd if stochastic else L * P * problem.excess / T
    noise = (σ2 if stochastic else math.sqrt(σ2)) * sgd + σ2 / (I * P * T)
    return AmplifiedBound(start, within / (P**2 * T), between / T, participation, noise)


@arguments_checked
def regularized_bound(problem: Amplify, period: int, *, divergence: NotNegativeFinite) -> float:
    """σρ√(LF)/√(IT) + (LPF + d² + σ²)/T, Corollary 4.3 of [A], (14): where `delta2` of the period is 0."""
    _check_period(problem, period)
    L, T, F = problem.smoothness, problem.rounds, problem.excess
    sgd = problem.concentration * math.sqrt(problem.noise * L * F / (problem.steps * T))
    return sgd + (L * period * F + divergence + problem.noise) / T


@arguments_checked
def stochastic_period(problem: Amplify, n: Count, variance: PositiveFinite) -> int:
    """P = υ² N^{5/2} √(IT), Corollary 4.8 of [A], rounded down but at least 1.

    `variance` is υ² or, with memory, υ̂². The corollary asks that I ≤ ρ / (υ² N^{5/2} √(LF)) and T ≥ 4 υ⁴ I N⁵
    (T → ∞ with memory).
    """
    I, T, spread = problem.steps, problem.rounds, float(variance * n**2.5)  # noqa: E741
    most = problem.concentration / (spread * math.sqrt(problem.smoothness * problem.excess))
    require(most >= I, f"steps must be at most ρ/(υ²N^(5/2)√(LF)) = {most:.6g}, got {I}: scale the loss down")
    least = 4 * spread**2 * I
    require(least <= T, f"rounds must be at least 4υ⁴IN⁵ = {least:.6g}, got {T}")
    return max(1, math.floor(float(spread * math.sqrt(I * T)) + 1e-9))


@arguments_checked
def stochastic_bound(problem: Amplify, n: Count, *, divergence: NotNegativeFinite) -> float:
    """(1+σ²)ρ√(LF)/√(IT) + d²/√(NIT) + (d²+σ²)/T, Corollary 4.8 of [A], (18), with `stochastic_period`."""
    L, I, T, F = problem.smoothness, problem.steps, problem.rounds, problem.excess  # noqa: E741
    sgd = (1 + problem.noise) * problem.concentration * math.sqrt(L * F / (I * T))
    return sgd + divergence / math.sqrt(n * I * T) + (divergence + problem.noise) / T


@arguments_checked
def amplification(problem: Amplify, matrix: npt.ArrayLike, *, divergence: NotNegativeFinite) -> Amplification:
    """γ, η and P for clients that take part as in a recorded matrix: the P for which (9) of [A] is least.

    Rates are those of Corollary 3.2, δ̃²(P) is `delta2` of the matrix, and d² = `divergence` stands for β̃² and for
    ν̃² (Proposition 4.1). Periods up to half of the recorded rounds and of T are tried; of equals the shortest
    is taken. The constants of O(·) are unknown: take P as an order of magnitude.
    """
    q = weights_of(matrix)
    require(bool(q.any()), f"somebody must come in some round, got shape {q.shape} of zeros")

    def promised(P: int) -> float:
        unequal = delta2(q, P, divergence=divergence)
        return corollary_bound(problem, P, within=divergence, between=divergence, participation=unequal).total()

    return amplified_rates(problem, min(range(1, max(min(len(q), problem.rounds) // 2, 1) + 1), key=promised))


def _check_period(problem: Amplify, period: int) -> None:
    half = problem.rounds / 2
    ok = 1 <= period <= half and period % 1 == 0
    require(ok, f"period must be a whole number from 1 to half of the {problem.rounds} rounds, got {period}")


def _rate(problem: Amplify, period: int) -> float:
    return 1 / (12 * problem.smoothness * problem.steps * period * math.sqrt(problem.rounds))


def _factor(problem: Amplify, period: int) -> float:
    """12 P √(LIF) / ρ."""
    return 12 * period * math.sqrt(problem.smoothness * problem.steps * problem.excess) / problem.concentration

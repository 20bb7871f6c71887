"""The results of FedStale: its bound by cause, the limits of its rates, the best β, and what no rule can beat.

[S] Rodio and Neglia, FedStale, ECAI 2024, with its supplement (equations 16 and above).
"""

from __future__ import annotations  # `help` shows the names of hints

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Count, NotNegative, Positive, Share, arguments_checked, part, require
from fedstale.core.parts import NotNegativeFinite, PositiveFinite
from fedstale.theory.checks import over, probabilities

__all__ = [
    "Bound", "Limits", "Problem", "Spread", "best_beta", "bound", "least_rounds", "limits", "lower_bound", "spread",
]  # fmt: skip


class Spread(NamedTuple):
    """How unequal participation is, Theorem 1 of [S]."""

    p_var: float  # 1 / mean((1 - p_i) / p_i): inf if all are always there, 0 if one never is
    p_avg: float
    p_min: float


@arguments_checked
def spread(p: npt.ArrayLike) -> Spread:
    """How unequal these participation probabilities are."""
    q = probabilities(p)
    with np.errstate(divide="ignore"):
        variance = float(np.mean((1 - q) / q))
    return Spread(over(1, variance), float(q.mean()), float(q.min()))


@part
class Problem:
    """What Theorem 1 of [S] assumes of the objective and of local training."""

    smoothness: PositiveFinite  # L
    noise: NotNegativeFinite  # σ², variance of a stochastic gradient
    diversity: NotNegativeFinite  # σ_g², squared distance of a client's gradient from the global one
    steps: Count  # K
    client_lr: PositiveFinite  # η_c

    def drift(self) -> float:
        """η_c² L² K (K - 1): how far local steps lead away from the gradient; 0 if there is but one."""
        return (self.client_lr * self.smoothness) ** 2 * self.steps * (self.steps - 1)


class Bound(NamedTuple):
    """An upper bound on min_t E‖∇F(w_t)‖², by cause."""

    start: float  # the first iterate
    memory: float  # the first memory
    noise: float  # stochastic gradients
    diversity: float  # data that differ

    def total(self) -> float:
        return sum(self)


@arguments_checked
def bound(
    problem: Problem, p: npt.ArrayLike, beta: Share, *, rounds: Count, server_lr: PositiveFinite = 1.0,
    excess: NotNegativeFinite = 1.0, memory_error: NotNegativeFinite = 1.0,
) -> Bound:  # fmt: skip
    """Theorem 1 of [S], eq. (10), for FedStale(beta), with the constants of eq. (144) in its proof.

    `excess` is F(w_1) - F*, `memory_error` is H_1 = mean_i ‖∇F_i(w_1) - h_i‖².
    """
    p_var, p_avg, p_min = _present(p)
    q, n, L, K, T = probabilities(p), np.size(p), problem.smoothness, problem.steps, rounds
    ηL, drift = server_lr * problem.client_lr * K * L, problem.drift()  # η = η_s η_c K
    fresh, stale = ηL / (n * p_var), beta**2 * ηL * p_avg / (p_var * p_min)
    noise = 4 * ηL / n * float(np.mean(1 / q)) + 48 * stale + (4 + 48 * fresh + 96 * stale) * drift
    sampling = fresh * (24 * (1 - beta) ** 2 * (T - 1) + 12) / T
    return Bound(
        start=4 * L * excess / (ηL * T),
        memory=48 * beta**2 * ηL * (1 - p_min) / (p_var * p_min) * memory_error / T,
        noise=noise * problem.noise / K,
        diversity=((16 + 192 * fresh + 384 * stale) * drift + sampling) * problem.diversity,
    )


@arguments_checked
def best_beta(problem: Problem, p: npt.ArrayLike) -> float:
    """β* of eq. (14) of [S], where the bound of a long run is least: a_1 = 2 (1 + 2 drift) and a_2 = 16.

    It shows a direction more than a value: down with p_avg / p_min and σ², up with σ_g².
    """
    _, p_avg, p_min = _present(p)
    ratio, share, drift = p_avg / p_min, problem.diversity / np.size(p), problem.drift()
    stale = 2 * (1 + 2 * drift) * ratio * problem.noise / problem.steps + 16 * ratio * drift * problem.diversity
    return share / (stale + share) if share > 0 else 0.0


class Limits(NamedTuple):
    """The largest learning rates for which Theorem 1 of [S] holds."""

    client: float  # η_c
    server: float  # η_s
    product: float  # η_s η_c K, which the proof needs, (121) and (122), and the statement leaves out


@arguments_checked
def limits(p: npt.ArrayLike, beta: Share, *, smoothness: PositiveFinite, steps: Count) -> Limits:
    """η_c ≤ 1 / (8 L K) and η_s ≤ min{n p_var / (12 (1 - β)²), p_var p_min / (3 β² p_avg)}.

    The third limit of eq. (104), 2 n p_var / 3, is never the least one for two clients or more.
    """
    (p_var, p_avg, p_min), n, βL = _present(p), np.size(p), beta * smoothness
    fresh, stale = over(n * p_var, 12 * (1 - beta) ** 2), over(p_var * p_min, 3 * beta**2 * p_avg)
    memory = over(p_var * p_min**2, 48 * βL**2 * (1 - p_avg) * (2 - p_min))
    product = math.sqrt(min(over(n * p_var, 24 * βL**2), memory))
    return Limits(1 / (8 * smoothness * steps), min(fresh, stale), product)


@arguments_checked
def lower_bound(
    p_min: Share, rounds: NotNegative, *, smoothness: PositiveFinite = 1.0, excess: NotNegativeFinite = 1.0
) -> float:
    """Theorem 4 of [S], constants of eq. (157): some objective keeps min_t E‖∇F(w_t)‖² above this."""
    x = p_min * rounds
    return 3 * smoothness * excess / ((x + 2) * (4 * x + 9) ** 2)


@arguments_checked
def least_rounds(
    p_min: Share, target: Positive, *, smoothness: PositiveFinite = 1.0, excess: NotNegativeFinite = 1.0
) -> float:
    """The rounds after which `lower_bound` is down to `target`: a constant over p_min, so Ω(1 / p_min)."""
    level = 3 * smoothness * excess / target  # = (x + 2)(4x + 9)², whose one positive root is x = p_min t
    roots = np.roots([16, 104, 225, 162 - level])
    real = roots[np.abs(roots.imag) <= 1e-6 * np.abs(roots)].real
    return over(max(0.0, float(real.max(initial=0.0))), p_min)


def _present(p: npt.ArrayLike) -> Spread:
    """The spread, where theory divides by every p."""
    found = spread(p)
    require(found.p_min > 0, f"every p must be above 0, got {found.p_min}")
    return found

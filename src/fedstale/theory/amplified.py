"""Participation in windows of P rounds, and updates that are amplified after each.

[A] Wang and Ji, A Unified Analysis of Federated Learning with Arbitrary Client Participation, 2022.
"""

from __future__ import annotations  # `help` shows the names of hints

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Count, NotNegative, PositiveShare, arguments_checked, require
from fedstale.theory.checks import weights_of

__all__ = ["Divergence", "delta2", "delta2_independent", "delta2_mixing", "divergence", "weight_variance"]


@arguments_checked
def delta2(matrix: npt.ArrayLike, period: int, *, divergence: NotNegative = 1.0) -> float:
    """δ̃²(P) of [A], as eq. (15) bounds it: the most, over windows of P rounds, of n Σ_i (q̄_i - μ)² d².

    q_i is 1 / (how many are there) for who is there, or what `matrix` has in the place of 0 and 1, scaled to sum 1
    in each round; q̄_i its mean over the window, μ the mean of the q̄_i, and `divergence` is d². 0 says that in every
    window all took part alike, in turn or together. Windows follow one another from the first round; an
    incomplete last one is left out.
    """
    q = weights_of(matrix)
    rounds, n = q.shape
    require(1 <= period <= rounds, f"period must be between 1 and the {rounds} rounds, got {period}")
    means = q[: rounds // period * period].reshape(-1, period, n).mean(axis=1)  # (windows, n)
    return float(n * n * divergence * means.var(axis=1).max())


class Divergence(NamedTuple):
    """The constants of Assumption 3' of [A], at one model."""

    between: float  # β̃² (5): of who is there from all
    within: float  # ν̃² (6): of a client from who is there
    window: float  # δ̃²(P) (7): of the mean of P rounds from all
    client: float  # d² (4): of a client from all; β̃² + ν̃² of every round are at most this (11)


@arguments_checked
def divergence(matrix: npt.ArrayLike, gradients: npt.ArrayLike, period: int = 1) -> Divergence:
    """β̃², ν̃², δ̃²(P) and d² of [A], (4) to (7), for gradients ∇F_n(x), (n, d): the most over rounds or windows.

    The paper asks for bounds at every x; this is what they are at the one where the gradients were taken.
    Windows and weights are those of `delta2`; a round without anybody counts as 0.
    """
    q, g = weights_of(matrix), np.asarray(gradients, np.float64)
    rounds, n = q.shape
    ok = g.ndim == 2 and len(g) == n and bool(np.isfinite(g).all())
    require(ok, f"gradients must be finite, (n, d) with n = {n}, got shape {g.shape}")
    require(1 <= period <= rounds, f"period must be between 1 and the {rounds} rounds, got {period}")
    away = g - g.mean(axis=0)
    means = q @ away  # (rounds, d) Σ_n q_n (∇F_n - ∇f)
    between, client = (means**2).sum(axis=1), (away**2).sum(axis=1)
    within = (q @ client - between).max(initial=0.0)  # (11): the variance is the second moment less the mean's
    windows = means[: rounds // period * period].reshape(-1, period, g.shape[1]).mean(axis=1)
    window = (windows**2).sum(axis=1).max()
    return Divergence(float(between.max()), float(within), float(window), float(client.max()))


@arguments_checked
def weight_variance(matrix: npt.ArrayLike, lags: int = 0) -> float:
    """υ² = Var(q_t^n), or υ̂² = Var + 2 Σ_p Cov(q_t^n, q_{t+p}^n) up to p = `lags`, Lemma 4.5 of [A].

    Measured on a participation matrix, about the mean of each client; the most of all clients.
    """
    q = weights_of(matrix)
    require(0 <= lags < len(q), f"lags must be at least 0 and below the {len(q)} rounds, got {lags}")
    away = q - q.mean(axis=0)
    total = (away**2).mean(axis=0)
    for p in range(1, lags + 1):
        total = total + 2 * (away[:-p] * away[p:]).mean(axis=0)
    return float(total.max())


@arguments_checked
def delta2_mixing(
    n: Count, variance: NotNegative, period: Count, *, divergence: NotNegative = 1.0, failure: PositiveShare = 1.0
) -> float:
    """N² d² υ̂² / (c P), Proposition 4.6 of [A] for stationary and strongly mixing weights, as P → ∞.

    `variance` is υ̂². It holds with probability 1 - c, c = `failure`, and in expectation for c = 1, the default.
    """
    return n**2 * divergence * variance / (failure * period)


@arguments_checked
def delta2_independent(
    n: Count, variance: NotNegative, period: Count, *, divergence: NotNegative = 1.0,
    failure: PositiveShare | None = None,
) -> float:  # fmt: skip
    """N² d² υ² / P in expectation, or N² d² ln(2 / c) / (2 P) with probability 1 - c; Proposition 4.7 of [A].

    For weights that are independent from round to round; `variance` is υ², and the second does not use it.
    """
    return n**2 * divergence * (variance if failure is None else math.log(2 / failure) / 2) / period

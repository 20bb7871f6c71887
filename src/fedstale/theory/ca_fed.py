"""The optimisation error of averaging under correlated availability, and the weights that make it least.

[T] Rodio, Client heterogeneity in federated learning systems, thesis, 2024, Theorem 2.3.3 and appendix E, which
writes E for K in places.
"""

from __future__ import annotations  # `help` shows the names of hints

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, arguments_checked, keep_numbers, part, per_client, require
from fedstale.core.parts import Count, NotNegative, NotNegativeFinite, PositiveFinite
from fedstale.theory.bias import Condition, biased_weights, chi_square
from fedstale.theory.checks import check_sums, probabilities
from fedstale.theory.markov import Mixing

__all__ = [
    "Correlated", "CorrelatedBound", "best_weights", "correlated_bound", "least_error_weights", "mixing_lag",
    "rate_limit", "total_error",
]  # fmt: skip


@part
class Correlated:
    """What Theorem 2.3.3 of [T] assumes of the objective, the set W of models, and local training."""

    smoothness: PositiveFinite  # L
    noise: npt.ArrayLike  # σ_i², variance of a client's stochastic gradient: one for all, or one each
    gap: NotNegativeFinite  # Γ = max_i F_i(w*) - F_i* (2.9)
    diameter: PositiveFinite  # diam(W)
    gradient: PositiveFinite  # D, the most ‖∇F_i(w)‖ (2.6)
    stochastic_gradient: PositiveFinite  # G, root of the most E‖∇F_i(w, B)‖² (2.7)
    loss_range: PositiveFinite  # H, the most |F_i(w) - F_i(w_B*)| (2.8)
    steps: Count  # K

    def __post_init__(self) -> None:
        keep_numbers(self, "noise", "at least 0 and finite")


class CorrelatedBound(NamedTuple):
    """The bound of Theorem 2.3.3 of [T] on the error of the biased objective, and what it is made of."""

    sigma: Floats  # (n,) the diagonal of Σ (2.14)
    v: float  # (2.15)
    psi: float  # ψ (2.16)
    phi: float  # φ (2.18)
    variance: float  # ½ qᵀΣq / πᵀq
    start: float  # v / πᵀq
    correlation: float  # φ / ln(1 / λ(P))
    progress: float  # Σ_{t ≤ T} η_t

    def opt(self) -> float:
        """ε̄_opt of (2.13), which bounds Σ η_t times the error, as (A.187) has it."""
        return self.variance + self.start + self.psi + self.correlation

    def error(self) -> float:
        """A bound on E F_B(w̄_T) - F_B*: ε̄_opt over Σ_{t ≤ T} η_t, (2.13) and (A.187)."""
        return self.opt() / self.progress


@arguments_checked
def rate_limit(smoothness: PositiveFinite, steps: Count, total: PositiveFinite) -> float:
    """1 / (2 L (1 + 2 K Q)), the most that the first learning rate may be (2.12); `total` is Q = Σ q_i."""
    return 1 / (2 * smoothness * (1 + 2 * steps * total))


@arguments_checked
def mixing_lag(t: npt.ArrayLike, mixing: Mixing, loss_range: PositiveFinite) -> npt.NDArray[np.int64]:
    """J(t) = min{max{⌈ln(2 C_P H t) / ln(1 / λ(P))⌉, T_P}, t} of (2.17), for rounds t counted from 1."""
    rounds = np.asarray(t)
    ok = rounds.dtype.kind in "iuf" and bool(((rounds >= 1) & (rounds < math.inf)).all() and not (rounds % 1).any())
    require(ok, f"t must be at least 1, in whole numbers, got {t!r}")
    lags = np.ceil(np.log(2 * mixing.constant * loss_range * rounds) / -math.log(mixing.rate))
    return np.asarray(np.minimum(np.maximum(lags, mixing.start), rounds), np.int64)


@arguments_checked
def correlated_bound(
    problem: Correlated, q: npt.ArrayLike, availability: npt.ArrayLike, mixing: Mixing, *,
    rates: npt.ArrayLike, rounds: int | None = None,
) -> CorrelatedBound:  # fmt: skip
    """Theorem 2.3.3 of [T], (2.13) to (2.18), for aggregation weights q_i and availabilities π_i.

    `rates` are η_1, η_2, …, which must not grow. Sums that the theorem runs to infinity run over all that are
    given: give more than the T = `rounds`, for which the error is asked (all, if left out). η_0, which φ asks for
    where J(t) = t and the text leaves open, is η_1.
    """
    π, L, K, H = probabilities(availability), problem.smoothness, problem.steps, problem.loss_range
    weights, η = _weights(q, len(π)), _rates(rates)
    Q, M, pull = float(weights.sum()), mixing.states, float(π @ weights)
    T = len(η) if rounds is None else rounds
    least = max(mixing.start, 1)  # T_P
    require(least <= T <= len(η), f"rounds must be from {least} to the {len(η)} rates that are given, got {T}")
    limit = rate_limit(L, K, Q)
    require(η[0] <= limit * (1 + 1e-9), f"the first rate must be at most 1/(2L(1 + 2KQ)) = {limit:.6g}, got {η[0]}")
    require(pull > 0, "somebody with a weight must come, got πᵀq = 0")
    t, squares = np.arange(1, len(η) + 1), float(η @ η)
    sigma = 2 * (K + 1) * π * per_client(problem.noise, len(π), "variances") * squares
    v = 2 / K * problem.diameter**2 + M * Q / 4 * (squares + float((1.0 / t**2).sum()))
    psi = (4 * L * (1 + K * Q) * problem.gap + 2 * (K * problem.stochastic_gradient) ** 2) * squares
    psi += H * float(η[: max(mixing.start - 1, 0)].sum())
    phi = 2 * K * problem.gradient * problem.stochastic_gradient * Q * _lagged(η, t, mixing, H)
    variance, correlation = 0.5 * float(sigma @ weights**2) / pull, phi / -math.log(mixing.rate)
    return CorrelatedBound(sigma, v, psi, phi, variance, v / pull, correlation, float(η[:T].sum()))


@arguments_checked
def total_error(opt: NotNegative, q: npt.ArrayLike, availability: npt.ArrayLike, *, target: npt.ArrayLike,
                condition: Condition, gap: NotNegativeFinite) -> float:  # fmt: skip
    """2 κ² (ε_opt + κ² χ²(α, p) Γ), the bound (2.10) with (2.11) on F(w) - F*; problem (2.19) makes it least.

    `opt` bounds ε_opt (`CorrelatedBound.error`), `target` are the α_i, and p_i = π_i q_i / Σ π_j q_j. Infinite if a
    client has no weight, which [T] calls an artifact of the proof.
    """
    check_sums(target)
    p = biased_weights(availability, q)
    return 2 * condition**2 * (opt + condition**2 * chi_square(target, p) * gap)


@arguments_checked
def best_weights(sigma: npt.ArrayLike, v: PositiveFinite, availability: npt.ArrayLike,
                 total: PositiveFinite) -> Floats:  # fmt: skip
    """(n,) q* that makes ε̄_opt least: (½ qᵀΣq + v) / πᵀq with q ≥ 0 and Σ q_i = Q, problem (A.192) of [T].

    q_i* = max{0, (ι* π_i - θ*) / Σ_ii} (A.204), with ι* and θ* of (A.206) and (A.207), where the clients left out
    and s* = 1 / πᵀq* are unknown. ι* is the least value itself: repeating ι ← value (Dinkelbach) finds all three.
    Problem (2.19) adds the bias: `least_error_weights`. The thesis has a closed form for this part only.
    """
    π, A = probabilities(availability), np.asarray(sigma, np.float64)
    ok = A.shape == π.shape and bool((A > 0).all()) and bool((π > 0).all())
    require(ok, f"sigma and availability must be above 0, one per client, got shapes {A.shape} and {π.shape}")
    q = np.full(len(π), total / len(π))
    value = math.inf
    while (found := (0.5 * float(A @ q**2) + v) / float(π @ q)) < value * (1 - 1e-15):
        value, q = found, _filled(A, found * π, total)
    return q


@arguments_checked
def least_error_weights(bound: CorrelatedBound, availability: npt.ArrayLike, total: PositiveFinite, *,
                        target: npt.ArrayLike, condition: Condition, gap: PositiveFinite) -> Floats:  # fmt: skip
    """(n,) q* > 0 with Σ q_i = Q that makes `total_error` least: problem (2.19) of [T], which it proves convex.

    Solved by Newton steps in y = q / πᵀq, the variable of (A.194), where πᵀy = 1 and χ² + 1 = Σ α_i² / (π_i y_i).
    `bound` is that of any weights of the same sum: its Σ, v and Σ η_t do not depend on them. Where the bias is less
    than 1e-8 of the error, rounding shows: `best_weights` is the limit.
    """
    π, α, A = probabilities(availability), np.asarray(target, np.float64), bound.sigma / bound.progress
    ok = A.shape == π.shape == α.shape and bool((π > 0).all() and (α > 0).all())
    require(ok, f"availability and target must be above 0, one per client, got {availability!r} and {target!r}")
    check_sums(α)
    require(math.isfinite(bound.v), f"bound.v must be finite, got {bound.v}: the chain has too many states")
    c, y, v = condition**2 * gap * α**2 / π, α / π, bound.v / bound.progress / total
    for more in 10.0 ** np.arange(16, -1, -1):  # from y = α / π, where the bias alone counts, to how much it counts
        y = _descended(A * total, v, more * c, y, π)
    return np.asarray(total * y / y.sum())


def _descended(A: Floats, v: float, c: Floats, y: Floats, π: Floats) -> Floats:
    """(n,) y > 0 with πᵀy as before that makes Σ A_i y_i² / (2 Σ y_i) + v Σ y_i + Σ c_i / y_i least: Newton."""

    def value(y: Floats) -> float:
        return float((A @ y**2) / (2 * y.sum()) + v * y.sum() + (c / y).sum())

    for _ in range(100):
        e, Ay, R = y.sum(), A * y, A @ y**2
        slope = Ay / e - R / (2 * e**2) + v - c / y**2
        D, U = (A / e + 2 * c / y**3)[:, None], np.stack([Ay, np.ones(len(y))], axis=1)
        B = np.stack([-slope, π], axis=1) / D  # the Hessian is diag(D) + U [[0, -1/e²], [-1/e², R/e³]] Uᵀ: O(n)
        down, along = (B - U / D @ np.linalg.solve(U.T @ (U / D) - [[R * e, e**2], [e**2, 0]], U.T @ B)).T
        step = down - (π @ down) / (π @ along) * along
        now, long = value(y), 1.0
        while (y + long * step).min() <= 0 or value(y + long * step) > now + long * (slope @ step) / 4:
            long /= 2
            if long < 1e-9:
                return y  # to rounding
        y = y + long * step
        if -(slope @ step) <= 1e-15 * now:
            break
    return y


def _filled(A: Floats, wish: Floats, total: float) -> Floats:
    """(n,) max{0, (wish_i - θ) / A_i} with the θ for which they sum to `total`."""
    order = np.argsort(-wish)
    sums, inverse = np.cumsum((wish / A)[order]), np.cumsum((1 / A)[order])
    θs = (sums - total) / inverse  # [k] if the k + 1 largest wishes are the ones above θ
    θ = θs[np.nonzero(wish[order] > θs)[0][-1]]
    return np.asarray(np.maximum(0.0, (wish - θ) / A))


def _lagged(η: Floats, t: npt.NDArray[np.int64], mixing: Mixing, H: float) -> float:
    """Σ_t ln(2 C_P H t) (η_{t - J(t)})²."""
    logs = np.log(2 * mixing.constant * H * t)
    require(logs[0] >= 0, f"loss_range must be at least 1/(2 C_P) = {0.5 / mixing.constant:.6g}, got {H}")
    before = np.maximum(t - mixing_lag(t, mixing, H), 1)
    return float(logs @ η[before - 1] ** 2)


def _weights(q: npt.ArrayLike, n: int) -> Floats:
    weights = np.asarray(q, np.float64)
    ok = weights.shape == (n,) and bool((weights >= 0).all())
    require(ok, f"q must be one weight of at least 0 for each of the {n} clients, got {q!r}")
    return weights


def _rates(rates: npt.ArrayLike) -> Floats:
    η = np.asarray(rates, np.float64)
    ok = η.ndim == 1 and len(η) > 0 and bool((η > 0).all()) and bool((np.diff(η) <= 0).all())
    require(ok, f"rates must be a list of learning rates above 0 that do not grow, got {rates!r}")
    return η

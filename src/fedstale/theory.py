"""The results of the papers as functions: bounds, step-size limits, and statistics of a participation matrix.

[S] Rodio and Neglia, FedStale, ECAI 2024, with its supplement (equations 16 and above).
[T] Rodio, Client heterogeneity in federated learning systems, thesis, 2024, section 2.3.
[A] Wang and Ji, A Unified Analysis of Federated Learning with Arbitrary Client Participation, 2022.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, Mask, arguments_checked, normalised, part, require


class Spread(NamedTuple):
    """How unequal participation is, Theorem 1 of [S]."""

    p_var: float  # 1 / mean((1 - p_i) / p_i): inf if all are always there, 0 if one never is
    p_avg: float
    p_min: float


@arguments_checked
def spread(p: npt.ArrayLike) -> Spread:
    """How unequal these participation probabilities are."""
    q = _probabilities(p)
    with np.errstate(divide="ignore"):
        variance = float(np.mean((1 - q) / q))
    return Spread(_over(1, variance), float(q.mean()), float(q.min()))


@part
class Problem:
    """What Theorem 1 of [S] assumes of the objective and of local training."""

    smoothness: float  # L
    noise: float  # σ², variance of a stochastic gradient
    diversity: float  # σ_g², squared distance of a client's gradient from the global one
    steps: int  # K
    client_lr: float  # η_c

    def __post_init__(self) -> None:
        ok = self.smoothness > 0 and self.client_lr > 0 and self.steps >= 1 and min(self.noise, self.diversity) >= 0
        require(ok, f"smoothness, client_lr and steps must be above 0, noise and diversity at least 0, got {self}")

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
    problem: Problem,
    p: npt.ArrayLike,
    beta: float,
    *,
    rounds: int,
    server_lr: float = 1.0,
    excess: float = 1.0,
    memory_error: float = 1.0,
) -> Bound:
    """Theorem 1 of [S], eq. (10), for FedStale(beta), with the constants of eq. (144) in its proof.

    `excess` is F(w_1) - F*, `memory_error` is H_1 = mean_i ‖∇F_i(w_1) - h_i‖². Eq. (140) and (145) collect
    the same terms but lose factors in print.
    """
    require(0 <= beta <= 1, f"beta must be in [0, 1], got {beta}")
    p_var, p_avg, p_min = _present(p)
    q, n, L, K, T = _probabilities(p), np.size(p), problem.smoothness, problem.steps, rounds
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
def limits(p: npt.ArrayLike, beta: float, *, smoothness: float, steps: int) -> Limits:
    """η_c ≤ 1 / (8 L K) and η_s ≤ min{n p_var / (12 (1 - β)²), p_var p_min / (3 β² p_avg)}.

    The third limit of eq. (104), 2 n p_var / 3, is never the least one for two clients or more.
    """
    require(0 <= beta <= 1, f"beta must be in [0, 1], got {beta}")
    (p_var, p_avg, p_min), n, βL = _present(p), np.size(p), beta * smoothness
    fresh, stale = _over(n * p_var, 12 * (1 - beta) ** 2), _over(p_var * p_min, 3 * beta**2 * p_avg)
    memory = _over(p_var * p_min**2, 48 * βL**2 * (1 - p_avg) * (2 - p_min))
    product = math.sqrt(min(_over(n * p_var, 24 * βL**2), memory))
    return Limits(1 / (8 * smoothness * steps), min(fresh, stale), product)


@arguments_checked
def lower_bound(p_min: float, rounds: float, *, smoothness: float = 1.0, excess: float = 1.0) -> float:
    """Theorem 4 of [S], constants of eq. (157): some objective keeps min_t E‖∇F(w_t)‖² above this."""
    x = p_min * rounds
    return 3 * smoothness * excess / ((x + 2) * (4 * x + 9) ** 2)


@arguments_checked
def least_rounds(p_min: float, target: float, *, smoothness: float = 1.0, excess: float = 1.0) -> float:
    """The rounds after which `lower_bound` is down to `target`: a constant over p_min, so Ω(1 / p_min)."""
    require(target > 0, f"target must be above 0, got {target}")
    level = 3 * smoothness * excess / target  # = (x + 2)(4x + 9)², whose one positive root is x = p_min t
    roots = np.roots([16, 104, 225, 162 - level])
    real = roots[np.abs(roots.imag) <= 1e-6 * np.abs(roots)].real
    return _over(max(0.0, float(real.max(initial=0.0))), p_min)


@arguments_checked
def total_variation(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """½ Σ |a_i - b_i| of two distributions, Theorem 2.3.4 of [T]."""
    return 0.5 * float(np.abs(np.subtract(a, b, dtype=np.float64)).sum())


@arguments_checked
def chi_square(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Σ (a_i - b_i)² / b_i, Theorem 2.3.2 of [T]; inf if b leaves out a client of a."""
    pairs = zip(np.asarray(a, np.float64).tolist(), np.asarray(b, np.float64).tolist(), strict=True)
    return sum(_over((x - y) ** 2, y) for x, y in pairs if x or y)


class BiasBound(NamedTuple):
    """Upper bounds on F(w_b) - F*, where w_b minimises Σ b_i F_i and not F = Σ a_i F_i."""

    by_chi_square: float  # κ² χ²(a, b) Γ, eq. (2.11)
    by_variation: float  # 4 κ² TV(a, b)² Γ', eq. (2.20)


@arguments_checked
def bias_bound(a: npt.ArrayLike, b: npt.ArrayLike, *, condition: float, gap: float, gap_b: float) -> BiasBound:
    """Theorems 2.3.2 and 2.3.4 of [T], for strongly convex F_i with condition number κ = L / μ.

    `gap` is Γ = max_i F_i(w*) - F_i*, and `gap_b` is Γ', the same at w_b.
    """
    κ2 = condition**2
    return BiasBound(κ2 * chi_square(a, b) * gap, 4 * κ2 * total_variation(a, b) ** 2 * gap_b)


@arguments_checked
def biased_weights(p: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Floats:
    """b_i = a_i p_i / Σ a_j p_j, eq. (2.4) of [T] and (4) of [S]: what the average of who comes minimises.

    Exact if the weight of those who come is the same every round, else `plain_weights` of a long matrix is.
    """
    q = _probabilities(p)
    b = q * normalised(weights, len(q))
    require(b.sum() > 0, "somebody with a weight must come, got p = 0 for all")
    return np.asarray(b / b.sum())


@arguments_checked
def plain_weights(matrix: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Floats:
    """(n,) mean of a_i 1{i here} / Σ_here a_j over the rounds with anybody there: how FedAvg weighs clients."""
    here = _matrix(matrix)
    q = here * normalised(weights, here.shape[1])
    q = q[q.sum(axis=1) > 0]
    require(len(q) > 0, "a participation matrix must have a round with somebody there, got none")
    return np.asarray((q / q.sum(axis=1, keepdims=True)).mean(axis=0))


@arguments_checked
def delta2(matrix: npt.ArrayLike, period: int, *, divergence: float = 1.0) -> float:
    """δ̃²(P) of [A], as eq. (15) bounds it: the most, over windows of P rounds, of n Σ_i (q̄_i - μ)² d².

    q_i is 1 / (how many are there) for who is there, q̄_i its mean over the window, μ the mean of the q̄_i,
    and `divergence` is d². 0 says that in every window all took part alike, in turn or together. Windows
    follow one another from the first round; an incomplete last one is left out.
    """
    here = _matrix(matrix)
    rounds, n = here.shape
    require(1 <= period <= rounds, f"period must be between 1 and the {rounds} rounds, got {period}")
    q = here / np.maximum(here.sum(axis=1, keepdims=True), 1)
    means = q[: rounds // period * period].reshape(-1, period, n).mean(axis=1)  # (windows, n)
    return float(n * n * divergence * means.var(axis=1).max())


class Counts(NamedTuple):
    """Whole numbers of rounds and how they spread; nan where there were none."""

    mean: float
    quantiles: Floats  # (5,) least, quarter, half, three quarters, most
    histogram: npt.NDArray[np.int64]  # [k] how often k came


class Summary(NamedTuple):
    """What a participation matrix says of the clients, and of averaging whoever comes."""

    rounds: int
    clients: int
    marginals: Floats  # (n,) share of the rounds in which each was there
    spread: Spread  # of the marginals
    on: Counts  # lengths of the stretches of presence, cut off where the matrix begins and ends
    off: Counts  # and of absence
    mixing: Floats  # (n,) λ̂_i: share there after a presence, minus share there after an absence; 0 if unknown
    staleness: Counts  # rounds since a client was last there, of every client and round from its first on
    unseen: float  # share of the client-rounds before the client's first
    longest_absence: npt.NDArray[np.int64]  # (n,) most rounds in a row without the client, both ends included
    bias: float  # total variation between the weights a and those of plain averaging
    least_rounds: float  # 1 / p_min: no rule can use everybody in fewer, on average


@arguments_checked
def summary(matrix: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Summary:
    """Of a 0/1 matrix, rounds × clients; `weights` are the a_i, uniform if left out."""
    here = _matrix(matrix)
    (rounds, n), marginals = here.shape, here.mean(axis=0)
    t = np.arange(rounds)[:, None]
    last = np.maximum.accumulate(np.where(here, t, -1), axis=0)  # (rounds, n) when each was last there
    return Summary(
        rounds, n, marginals, spread(marginals), on=_counts(_stretches(here)), off=_counts(_stretches(~here)),
        mixing=_mixing(here), staleness=_counts((t - last)[last >= 0]), unseen=float((last < 0).mean()),
        longest_absence=(t - last).max(axis=0), least_rounds=_over(1, float(marginals.min())),
        bias=total_variation(normalised(weights, n), plain_weights(here, weights)),
    )  # fmt: skip


def _counts(values: npt.NDArray[np.int64]) -> Counts:
    if len(values) == 0:
        return Counts(math.nan, np.full(5, math.nan), values)
    quantiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1], method="inverted_cdf").astype(np.float64)
    return Counts(float(values.mean()), quantiles, np.bincount(values))


def _stretches(here: Mask) -> npt.NDArray[np.int64]:
    """The lengths of all runs of True down the columns."""
    edges = np.diff(here.T.astype(np.int8), axis=1, prepend=0, append=0)  # (n, rounds + 1)
    return np.asarray(np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1])


def _mixing(here: Mask) -> Floats:
    now, then = here[:-1], here[1:]
    on, off = now.sum(axis=0), (~now).sum(axis=0)
    after = (now & then).sum(axis=0) / np.maximum(on, 1) - (~now & then).sum(axis=0) / np.maximum(off, 1)
    return np.where((on > 0) & (off > 0), after, 0.0)


def _probabilities(p: npt.ArrayLike) -> Floats:
    q = np.asarray(p, np.float64)
    ok = q.ndim == 1 and q.size > 0 and bool(((q >= 0) & (q <= 1)).all())
    require(ok, f"p must be one probability in [0, 1] per client, got {p!r}")
    return q


def _present(p: npt.ArrayLike) -> Spread:
    """The spread, where theory divides by every p."""
    found = spread(p)
    require(found.p_min > 0, f"every p must be above 0, got {found.p_min}")
    return found


def _matrix(matrix: npt.ArrayLike) -> Mask:
    m = np.asarray(matrix)
    ok = m.ndim == 2 and m.size > 0 and bool(((m == 0) | (m == 1)).all())
    require(ok, f"a participation matrix must be rounds × clients of 0 and 1, got shape {m.shape}")
    return m.astype(np.bool_)


def _over(x: float, y: float) -> float:
    return math.inf if y == 0 else x / y

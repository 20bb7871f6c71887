"""Every function of `fs.theory` once more, in float64 from the printed formulas, at twenty random inputs each."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from fedstale import theory as th
from fedstale.tasks.quadratic import Quadratic

Pairs = list[tuple[Any, Any]]  # what the function says, what the formula says
CHECKS: dict[tuple[str, ...], Callable[[np.random.Generator], Pairs]] = {}


def of(*names: str) -> Callable[[Any], Any]:
    def add(check: Any) -> Any:
        CHECKS[names] = check
        return check

    return add


def record(kind: Any, rng: np.random.Generator, **own: Any) -> Any:
    """A problem with random numbers: whole ones for counts."""
    drawn = {name: rng.uniform(0.2, 3.0) for name in kind.__annotations__ if name not in ("steps", "rounds")}
    return kind(**drawn | {"steps": int(rng.integers(1, 7))} | own)


def recording(rng: np.random.Generator, rounds: int = 24, n: int = 4) -> Any:
    return rng.random((rounds, n)) < rng.uniform(0.3, 0.8)


def shares(matrix: Any) -> Any:
    """(rounds, n) q_t^n of [A]: 1 / |S| for who is there."""
    return np.array([[x / max(sum(row), 1) for x in row] for row in matrix.astype(float).tolist()])


def simplex(rng: np.random.Generator, n: int) -> Any:
    x = rng.uniform(0.1, 1, n)
    return x / x.sum()


# [S], FedStale


@of("spread", "limits", "best_beta", "bound", "lower_bound", "least_rounds")
def fedstale(rng: np.random.Generator) -> Pairs:
    N, T, β = int(rng.integers(2, 9)), int(rng.integers(2, 500)), rng.uniform(0.05, 0.95)
    p, η_s, F, H = (
        1 - rng.uniform(0, rng.choice([0.02, 0.95]), N),
        rng.uniform(0.01, 1),
        rng.uniform(0.5, 5),
        rng.uniform(0, 4),
    )
    problem = record(th.Problem, rng)
    L, σ2, σg2, K, η_c = asdict(problem).values()
    V, avg, low = sum((1 - x) / x for x in p) / N, sum(p) / N, min(p)  # V = 1 / p_var
    η, drift = η_s * η_c * K, η_c**2 * L**2 * K * (K - 1)
    noise = (4 * η * L / N * sum(1 / p) / N + 48 * β**2 * η * L * V * avg / low) * σ2 / K  # (144)
    noise += (4 + 48 * η * L / N * V + 96 * β**2 * η * L * V * avg / low) * drift * σ2 / K
    diversity = (16 + 192 * η * L / N * V + 384 * β**2 * η * L * V * avg / low) * drift * σg2
    diversity += (T - 1) / T * 24 * η * L * (1 - β) ** 2 / N * V * σg2 + 12 * η * L / N * V * σg2 / T
    memory = 48 * β**2 * η * L * V * (1 - low) / low * H / T
    server = min(N / (12 * (1 - β) ** 2 * V), 2 * N / (3 * V), 1 / (3 * β**2 * V * avg / low))  # (132)
    root = min(N / (24 * β**2 * L**2 * V), low**2 / (48 * β**2 * L**2 * V * (1 - avg) * (2 - low)))  # (121), (122)
    # (14): where 48 (1 + 2 drift) r β σ²/K + 384 r drift β σ_g² = 24 (1 - β) σ_g² / N
    r, a = avg / low, σg2 / N
    best = a / (2 * (1 + 2 * drift) * r * σ2 / K + (1 / N + 16 * r * drift) * σg2)
    floor = 3 * L * F / ((low * T + 2) * (4 * low * T + 9) ** 2)  # (157)
    return [
        (th.spread(p), (1 / V, avg, low)),
        (problem.drift(), drift),
        (
            th.bound(problem, p, β, rounds=T, server_lr=η_s, excess=F, memory_error=H),
            (4 * F / η / T, memory, noise, diversity),
        ),
        (th.limits(p, β, smoothness=L, steps=K), (1 / (8 * L * K), server, math.sqrt(root))),
        (th.best_beta(problem, p), best),
        (th.lower_bound(low, T, smoothness=L, excess=F), floor),
        (th.least_rounds(low, floor, smoothness=L, excess=F), T),
    ]


@of("normalised", "biased_weights", "plain_weights", "total_variation", "chi_square", "bias_bound", "summary")
def bias(rng: np.random.Generator) -> Pairs:
    raw, matrix = rng.uniform(0.1, 3, 4), recording(rng)
    a, p, κ, Γ, Γ2 = raw / sum(raw), rng.uniform(0.05, 1, 4), *rng.uniform(1, 5, 3)
    b = a * p / sum(a * p)
    rows = [a * row / sum(a * row) for row in matrix.astype(float) if row.any()]
    TV, χ2 = sum(abs(a - b)) / 2, sum((a - b) ** 2 / b)
    plain, found = sum(rows) / len(rows), th.summary(matrix, raw)
    often = matrix.mean(axis=0)
    before = [np.flatnonzero(column)[0] if column.any() else 24 for column in matrix.T]
    ends = [[-1, *np.flatnonzero(column), 24] for column in matrix.T]
    return [
        (th.normalised(raw, 4), a),
        (th.normalised(None, 4), [0.25] * 4),
        (th.biased_weights(p, raw), b),
        (th.plain_weights(matrix, raw), plain),
        (th.total_variation(a, b), TV),
        (th.chi_square(a, b), χ2),
        (th.bias_bound(a, b, condition=κ, gap=Γ, gap_b=Γ2), (κ**2 * χ2 * Γ, 4 * κ**2 * TV**2 * Γ2)),
        (found.marginals, often),
        (found.bias, sum(abs(a - plain)) / 2),
        (found.least_rounds, 1 / min(often)),
        (found.unseen, sum(before) / matrix.size),
        (found.longest_absence, [max(y - x - 1 for x, y in pairwise(e)) for e in ends]),
    ]


# [A], amplified updates


@of("delta2", "divergence", "weight_variance", "delta2_mixing", "delta2_independent")
def participation(rng: np.random.Generator) -> Pairs:
    matrix, P, d2, fail = recording(rng), int(rng.integers(1, 9)), rng.uniform(0.1, 4), rng.uniform(0.05, 0.9)
    q, g, N = shares(matrix), rng.standard_normal((4, 3)), 4
    apart = g - g.mean(axis=0)
    windows = [q[k : k + P].mean(axis=0) for k in range(0, len(q) - P + 1, P)]
    five = [np.linalg.norm(row @ apart) ** 2 for row in q]
    six = [sum(x * np.linalg.norm(y - row @ g) ** 2 for x, y in zip(row, g, strict=True)) for row in q]
    seven = [np.linalg.norm(w @ apart) ** 2 for w in windows]
    fifteen = [N * sum((w - w.mean()) ** 2) * d2 for w in windows]
    c = q - q.mean(axis=0)
    lagged = [
        np.mean(c**2, axis=0) + 2 * sum(np.mean(c[:-k] * c[k:], axis=0) for k in range(1, m + 1)) for m in (0, 1, 3)
    ]
    υ2 = rng.uniform(0.01, 0.2)
    return [
        (th.delta2(matrix, P, divergence=d2), max(fifteen)),
        (th.divergence(matrix, g, P), (max(five), max(six), max(seven), max(np.sum(apart**2, axis=1)))),
        ([th.weight_variance(matrix, k) for k in (0, 1, 3)], [max(x) for x in lagged]),
        (th.delta2_mixing(N, υ2, P, divergence=d2, failure=fail), N**2 * d2 * υ2 / (fail * P)),
        (th.delta2_independent(N, υ2, P, divergence=d2), N**2 * d2 * υ2 / P),
        (th.delta2_independent(N, υ2, P, divergence=d2, failure=fail), N**2 * d2 * math.log(2 / fail) / (2 * P)),
    ]


@of("amplified_bound", "amplified_rates", "corollary_bound", "stochastic_rates", "regularized_bound",
    "stochastic_bound", "stochastic_period", "amplification")  # fmt: skip
def amplified(rng: np.random.Generator) -> Pairs:
    P, T, N, ρ = int(rng.integers(1, 9)), int(rng.integers(20, 4000)), int(rng.integers(2, 30)), rng.uniform(0.1, 1)
    problem = record(th.Amplify, rng, rounds=T, concentration=ρ, excess=rng.uniform(1e-4, 1))
    L, σ2, F, I = problem.smoothness, problem.noise, problem.excess, problem.steps  # noqa: E741
    ν2, β2, δ2, d2 = rng.uniform(0, 3, 4)
    γ = rng.uniform(0.1, 1) / (12 * L * I * P)
    η = rng.uniform(0.1, 1) / (γ * L * I * P)
    terms: Any = {"within": ν2, "between": β2, "participation": δ2}
    eight = [F / (γ * η * I * T), (γ * L * I) ** 2 * ν2, (γ * L * I * P) ** 2 * β2, δ2]
    eight += [(γ**2 * L**2 * I + γ**2 * L**2 * I * P * ρ**2 + γ * η * L * ρ**2) * σ2]
    sgd, rest = ρ * math.sqrt(L * F) / math.sqrt(I * T), σ2 / (I * P * T)
    γ2, η2 = 1 / (12 * L * I * P * math.sqrt(T)), 12 * P * math.sqrt(L * I * F) / ρ
    matrix = recording(rng)
    q = shares(matrix)

    def nine(P: int) -> float:
        windows = [q[k : k + P].mean(axis=0) for k in range(0, len(q) - P + 1, P)]
        unequal = max(4 * sum((w - w.mean()) ** 2) * d2 for w in windows)
        first = math.sqrt(σ2) * sgd + L * P * F / T
        return float(first + d2 / (P**2 * T) + d2 / T + unequal + σ2 / (I * P * T))

    best = min(range(1, min(12, T // 2) + 1), key=nine)
    υ2 = rng.uniform(1e-4, 0.02)
    wide = record(th.Amplify, rng, rounds=10**9, excess=1e-12, steps=1, concentration=ρ)
    pairs: Pairs = [
        (th.amplified_bound(problem, th.Amplification(γ, η, P), **terms), eight),
        (th.amplified_rates(replace(problem, noise=1e-9), P).factor, min(η2 / math.sqrt(1e-9), 12 * math.sqrt(T))),
        (th.amplified_rates(problem, P), (γ2, min(η2 / math.sqrt(σ2), 12 * math.sqrt(T)), P)),
        (
            th.corollary_bound(problem, P, **terms),
            (L * P * F / T, ν2 / (P**2 * T), β2 / T, δ2, math.sqrt(σ2) * sgd + rest),
        ),
        (th.regularized_bound(problem, P, divergence=d2), math.sqrt(σ2) * sgd + (L * P * F + d2 + σ2) / T),
        (
            th.stochastic_bound(problem, N, divergence=d2),
            (1 + σ2) * sgd + d2 / math.sqrt(N * I * T) + (d2 + σ2) / T,
        ),
        (th.stochastic_period(wide, N, υ2), max(1, math.floor(υ2 * N**2.5 * math.sqrt(1e9)))),
        (th.amplification(problem, matrix, divergence=d2).period, best),
    ]
    F2 = rng.uniform(0.1, 1) * ρ**2 * T / (L * I * P**2)  # √F/(ρ√(LIT)) ≤ 1/(LIP), as Corollary 3.3 asks
    few, sgd2 = replace(problem, excess=F2), ρ * math.sqrt(L * F2) / math.sqrt(I * T)
    ten = (1 + σ2) * sgd2 + ν2 / (P**2 * T) + β2 / T + δ2 + rest
    pairs.append((th.stochastic_rates(few, P), (γ2, 12 * P * math.sqrt(L * I * F2) / ρ, P)))
    pairs.append((th.corollary_bound(few, P, stochastic=True, **terms).total(), ten))
    return pairs


# [T], chapter 2 and its appendices


@of("two_state", "product_chain", "stationary", "mixing", "mixing_time", "mixing_time_bounds")
def chains(rng: np.random.Generator) -> Pairs:
    clients, ε = rng.uniform(0.1, 0.9, (2, 2)), rng.uniform(0.01, 0.4)
    two = [[[1 - (1 - λ) * π, (1 - λ) * π], [(1 - λ) * (1 - π), λ + (1 - λ) * π]] for π, λ in clients]
    any_chain = rng.uniform(0.05, 1, (3, 3))
    any_chain /= any_chain.sum(axis=1, keepdims=True)
    states = list(product((0, 1), repeat=2))
    P = np.array([[two[0][x][z] * two[1][y][w] for z, w in states] for x, y in states])
    pairs: Pairs = [
        ([th.two_state(*client) for client in clients], two),
        (th.product_chain(*np.array(two)), P),
    ]
    for chain, parts in ((any_chain, [any_chain]), (P, [np.array(x) for x in two])):
        bases = [np.linalg.eig(part) for part in parts]
        moduli = sorted(abs(np.linalg.eigvals(chain)))
        second, M = moduli[-2], len(chain)
        ρ = np.linalg.matrix_power(chain, 4000)[0]
        C = math.sqrt(M - 1)
        for _, U in bases:  # norms of a Kronecker product are products of norms
            C *= float(np.linalg.norm(U) * np.linalg.norm(np.linalg.inv(U)))
        rel, rate, found = 1 / (1 - second), (second + 1) / 2, th.mixing(*parts)
        above = math.log(1 / (ε * min(ρ))) * rel
        t = next(t for t in range(9999) if abs(np.linalg.matrix_power(chain, t) - ρ).sum(axis=1).max() / 2 <= ε)
        pairs += [
            (th.stationary(chain), ρ),
            (found, (second, rate, C, 0, rel, min(ρ), M)),
            (found.distance(5), C * rate**5),
            (th.mixing_time(chain, ε), t),
            (th.mixing_time_bounds(found, ε), ((rel - 1) * math.log(1 / (2 * ε)), above)),
        ]
    return pairs


@of("correlated_bound", "mixing_lag", "rate_limit", "total_error")
def correlated(rng: np.random.Generator) -> Pairs:
    n, many, T = int(rng.integers(2, 6)), 60, 40
    q, π, σ2 = rng.uniform(0.1, 1, n), rng.uniform(0.1, 0.9, n), rng.uniform(0.1, 2, n)
    chain = th.mixing(*(th.two_state(x, rng.uniform(0.1, 0.8)) for x in π))._replace(start=int(rng.integers(0, 6)))
    problem = record(th.Correlated, rng, noise=σ2)
    L, Γ, diam, D, G, H, K = (problem.smoothness, problem.gap, problem.diameter, problem.gradient,
                              problem.stochastic_gradient, problem.loss_range, problem.steps)  # fmt: skip
    Q, M, C, λ, T_P = sum(q), chain.states, chain.constant, chain.rate, chain.start
    first = 1 / (2 * L * (1 + 2 * K * Q))
    η = {t: first / t**0.7 for t in range(1, many + 1)}
    J = {t: min(max(math.ceil(math.log(2 * C * H * t) / math.log(1 / λ)), T_P), t) for t in η}
    squares = sum(x * x for x in η.values())
    Σ = [2 * (K + 1) * p * s * squares for p, s in zip(π, σ2, strict=True)]
    v = 2 / K * diam**2 + M * Q / 4 * sum(x * x + 1 / t**2 for t, x in η.items())
    ψ = (4 * L * (1 + K * Q) * Γ + 2 * K**2 * G**2) * squares + H * sum(η[t] for t in range(1, T_P))
    φ = 2 * K * D * G * Q * sum(math.log(2 * C * H * t) * η[max(t - J[t], 1)] ** 2 for t in η)  # η_0 is read as η_1
    variance, start, drag = 0.5 * sum(q * q * Σ) / sum(π * q), v / sum(π * q), φ / math.log(1 / λ)
    progress = sum(η[t] for t in range(1, T + 1))
    found = th.correlated_bound(problem, q, π, chain, rates=list(η.values()), rounds=T)
    opt = variance + start + ψ + drag
    κ, α = rng.uniform(1, 5), simplex(rng, n)
    b = π * q / sum(π * q)
    error = 2 * κ**2 * (opt / progress + κ**2 * sum((α - b) ** 2 / b) * Γ)
    return [
        (found.sigma, Σ),
        (found[1:], (v, ψ, φ, variance, start, drag, progress)),
        (found.opt(), opt),
        (found.error(), opt / progress),
        (th.mixing_lag(list(J), chain, H), list(J.values())),
        (th.rate_limit(L, K, Q), first),
        (th.total_error(opt / progress, q, π, target=α, condition=κ, gap=Γ), error),
    ]


@of("best_weights")
def weights(rng: np.random.Generator) -> Pairs:
    """Every set of clients left out is tried; s = 1 / πᵀq, unknown in (A.207), is where ∂𝓛/∂s = 0 (A.196)."""
    n, B, Q = int(rng.integers(2, 5)), rng.uniform(0.1, 2), rng.uniform(0.5, 3)
    A, π, found = rng.uniform(0.5, 4, n), rng.uniform(0.1, 0.9, n), []
    for kept in product((0, 1), repeat=n):
        z, zπ, zππ = (sum(np.array(kept) * π**k / A) for k in range(3))

        def at(s: float, kept: Any = np.array(kept), z: Any = z, zπ: Any = zπ, zππ: Any = zππ) -> Any:
            θ = (zπ - Q * s * zππ) / (s * (z * zππ - zπ**2))
            q = kept * ((Q + θ * z) / zπ * π - θ) / A
            return B - 0.5 * sum(q * q * A) - θ * Q, q

        for low, high in pairwise(np.geomspace(1e-2, 1e2, 100)) if sum(kept) > 1 else ():
            if at(low)[0] * at(high)[0] < 0:
                for _ in range(45):
                    middle = (low + high) / 2
                    low, high = (low, middle) if at(low)[0] * at(middle)[0] <= 0 else (middle, high)
                found.append(at(low)[1])
        found += [Q * np.array(kept)] if sum(kept) == 1 else []
    least = min(((0.5 * sum(q * q * A) + B) / sum(π * q), *q) for q in found if (q >= 0).all())
    best = th.best_weights(A, B, π, Q)
    return [((0.5 * sum(best**2 * A) + B) / sum(π * best), least[0]), (best, least[1:])]


@of("least_error_weights")
def weights_with_bias(rng: np.random.Generator) -> Pairs:
    """Two clients: (2.10) with (2.11) and (2.13) over the share of the first, by ternary search."""
    π, α, Q, κ, Γ = (
        rng.uniform(0.1, 0.9, 2),
        simplex(rng, 2),
        rng.uniform(0.5, 3),
        rng.uniform(1, 4),
        rng.uniform(0.01, 9),
    )
    Σ, v, S = rng.uniform(1, 90, 2), rng.uniform(0.1, 9), rng.uniform(0.1, 9)

    def error(x: float) -> float:
        q = Q * np.array([x, 1 - x])
        p = π * q / sum(π * q)
        return float(2 * κ**2 * ((0.5 * sum(Σ * q * q) + v) / sum(π * q) / S + κ**2 * sum((α - p) ** 2 / p) * Γ))

    low, high = 1e-9, 1 - 1e-9
    for _ in range(120):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if error(a) < error(b) else (a, high)
    found = th.CorrelatedBound(Σ, v, 0.0, 0.0, 0.0, 0.0, 0.0, S)
    q = th.least_error_weights(found, π, Q, target=α, condition=κ, gap=Γ)
    return [(sum(q), Q), (error(q[0] / Q), error(low)), (np.round(q / Q, 6), np.round([low, 1 - low], 6))]


@of("heterogeneity")
def heterogeneity(rng: np.random.Generator) -> Pairs:
    n, w = int(rng.integers(2, 6)), rng.standard_normal(3)
    c, A, raw = rng.standard_normal((n, 3)), rng.uniform(0.5, 2, (n, 3)), rng.uniform(0.1, 1, n)
    F, g, a = [0.5 * sum(A[i] * (w - c[i]) ** 2) for i in range(n)], A * (w - c), raw / sum(raw)
    best, mean = rng.uniform(-1, 0, n), a @ g  # F_i*, as if they were known
    found = th.heterogeneity(Quadratic(c, A, weights=raw), w, optima=best)
    due = (sum(a * (F - best)), max(F - best), sum(a * np.sum((g - mean) ** 2, axis=1)), np.linalg.norm(mean))
    return [(found[:4], due), (found.losses, F)]


# [T], chapters 4 and 5


@of("lossy_constant", "upga_rate", "upga_bound", "dma_bound", "loss_variance", "retries")
def lossy(rng: np.random.Generator) -> Pairs:
    n, t, raw = int(rng.integers(2, 5)), int(rng.integers(1, 300)), rng.uniform(0.1, 1, 6)
    α, q, σ2 = raw[:n] / sum(raw[:n]), rng.uniform(0, 0.9, n), rng.uniform(0, 2, n)
    L, distance, x = rng.uniform(2, 5), rng.uniform(0.1, 3), rng.standard_normal((n, 3))
    problem = record(th.Lossy, rng, smoothness=L, convexity=rng.uniform(0.2, 1.9), noise=σ2)
    μ, Γ, G, K = problem.convexity, problem.gap, problem.stochastic_gradient, problem.steps
    κ = L / μ

    def constant(q: Any) -> list[float]:
        parts = [sum(α**2 * σ2), 2 * (K - 1) ** 2 * G**2, 6 * L * Γ]
        return [*parts, K * G**2 * sum(α**2 * q / (1 - q))]

    def bound(q: Any, t: int) -> float:
        return float(κ / (8 * κ + t) * (2 * K * sum(constant(q)) / μ + 4 * L * distance**2))

    ζ1, ζ2, excess = rng.uniform(0, 2), rng.uniform(0, 0.5), rng.uniform(0.1, 3)
    A = 1 - μ / L + 4 * μ * ζ2 / L * sum(α * q)
    left = 2 * ζ1 / L * sum(α * q)
    target, training, again = bound(q, t) * 0.999, rng.uniform(0, 9), []
    for R in range(4):
        rounds = next(k for k in range(1, 10**6) if bound(q ** (R + 1), k) <= target)
        slots = 0.0
        for sends in product(range(1, R + 2), repeat=n):  # how often each client sends, R + 1 times at most
            chances = [z ** (k - 1) * (1 - z if k <= R else 1) for z, k in zip(q, sends, strict=True)]
            slots += max(sends) * math.prod(chances)
        again += [R, rounds, slots, rounds * (training + slots)]
    found = th.retries(problem, q, target, distance=distance, training=training, most=3, weights=raw[:n])
    return [
        (th.lossy_constant(problem, q, raw[:n]), constant(q)),
        (th.upga_rate(problem, t), 2 / μ / (8 * κ + t - 1)),
        (th.upga_bound(problem, q, t, distance=distance, weights=raw[:n]), bound(q, t)),
        (
            th.dma_bound(problem, q, t, zeta1=ζ1, zeta2=ζ2, excess=excess, weights=raw[:n]),
            (A**t * excess, left * sum(A**k for k in range(t)), A, left / (1 - A) if A < 1 else math.inf),
        ),
        (
            th.dma_bound(problem, q, t, zeta1=ζ1, zeta2=ζ2, excess=excess, weights=raw[:n]).total(),
            A**t * excess + left * sum(A**k for k in range(t)),
        ),
        (th.loss_variance(x, q, raw[:n]), sum(α**2 * q / (1 - q) * np.sum(x**2, axis=1))),
        (np.ravel(found), again),
    ]


@of("exit_constant", "exit_rate", "exit_bound")
def exits(rng: np.random.Generator) -> Pairs:
    n, E, T = 4, 3, int(rng.integers(1, 300))
    holds = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 1]])
    p = rng.uniform(0.1, 1, (n, E)) * holds
    p /= p.sum(axis=1, keepdims=True)
    D, σ2, η_s = rng.integers(10, 500, n), rng.uniform(0.1, 3, (n, E)), rng.uniform(0.2, 2)
    used, target, dims = simplex(rng, E), simplex(rng, E), rng.integers(1, 60, E)
    L = rng.uniform(2, 4)
    problem = record(th.Exits, rng, smoothness=L, convexity=rng.uniform(0.3, 1.5), noise=σ2)
    μ, Γ, diam, M, K = (problem.convexity, problem.gap, problem.diameter, problem.largest_loss, problem.steps)
    κ = L / μ
    γ = max(8 * κ, K) - 1
    pairs = [(i, e) for i in range(n) for e in range(E) if holds[i, e]]
    size = [sum(D[i] for i in range(n) if holds[i, e]) for e in range(E)]
    α = {(i, e): η_s * used[e] * D[i] / size[e] for i, e in pairs}
    G = {(i, e): σ2[i, e] + (L * diam) ** 2 for i, e in pairs}
    B = [
        sum(α[k] ** 2 * σ2[k] for k in pairs),
        6 * L * Γ,
        8 * (K - 1) ** 2 * max(G.values()),
        4 * K**2 * sum(α[k] ** 2 * (1 - p[k]) / p[k] * G[k] for k in pairs),
    ]
    distance, t, k = rng.uniform(0.1, 3), int(rng.integers(1, 99)), int(rng.integers(0, K))
    due = (
        2 * sum(used[e] * M * 320 * math.sqrt(dims[e] / size[e]) for e in range(E)),
        2 * 2 * M * sum(abs(used - target)) / 2,
        κ / (γ + K * T) * (2 * sum(B) / μ + μ * (γ + 1) / 2 * distance**2),
    )
    bound = th.exit_bound(
        problem, D, p, used, target=target, dimensions=dims, rounds=T, distance=distance, server_lr=η_s
    )
    return [
        (problem.offset(), γ),
        (th.exit_constant(problem, D, p, used, server_lr=η_s), B),
        (th.exit_rate(problem, t, k), 2 / (μ * (γ + (t - 1) * K + k + 1))),
        (bound, due),
    ]


def test_no_function_is_left_out() -> None:
    assert {*sum(CHECKS, ())} == {name for name in th.__all__ if name[0].islower()}


@pytest.mark.parametrize("names", CHECKS, ids=lambda names: names[0])
def test_again_from_the_papers(names: tuple[str, ...]) -> None:
    for seed in range(20):
        for found, due in CHECKS[names](np.random.default_rng(seed)):
            np.testing.assert_allclose(np.array(found, float), np.array(due, float), rtol=1e-6, atol=1e-9)

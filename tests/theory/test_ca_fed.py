"""Theorem 2.3.3 of the thesis, term by term in plain Python, and the weights that make it least."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput
from fedstale.theory import (
    Correlated,
    CorrelatedBound,
    best_weights,
    correlated_bound,
    least_error_weights,
    mixing,
    mixing_lag,
    rate_limit,
    total_error,
    two_state,
)

L, Γ, DIAM, D, G, H, K = 2.0, 0.7, 3.0, 1.5, 2.5, 4.0, 5
π, σ2, q = [0.9, 0.5, 0.1], [1.0, 2.0, 0.5], [0.3, 0.2, 0.4]
problem = Correlated(
    L, noise=σ2, gap=Γ, diameter=DIAM, gradient=D, stochastic_gradient=G, loss_range=H, steps=K
)  # fmt: skip
chain = mixing(*(two_state(x, 0.6) for x in π))
rates = [0.02 / t**0.75 for t in range(1, 401)]
endless = correlated_bound(problem, q, π, chain._replace(states=math.inf), rates=rates)


def test_theorem_2_3_3_term_by_term() -> None:
    λ, C, Q, M = (0.6 + 1) / 2, chain.constant, sum(q), 8
    squares = sum(r * r for r in rates)
    Σ = [2 * (K + 1) * p * s * squares for p, s in zip(π, σ2, strict=True)]
    v = 2 / K * DIAM**2 + 0.25 * M * Q * sum(r * r + 1 / t**2 for t, r in enumerate(rates, 1))
    ψ = (4 * L * (1 + K * Q) * Γ + 2 * K**2 * G**2) * squares  # T_P = 0: no sum of H η
    φ = 0.0
    for t in range(1, 401):
        J = min(max(math.ceil(math.log(2 * C * H * t) / math.log(1 / λ)), 0), t)
        assert mixing_lag(t, chain, H) == J
        φ += 2 * K * D * G * Q * math.log(2 * C * H * t) * rates[max(t - J, 1) - 1] ** 2
    pull = sum(x * y for x, y in zip(π, q, strict=True))
    half = 0.5 * sum(s * x * x for s, x in zip(Σ, q, strict=True))
    found = correlated_bound(problem, q, π, chain, rates=rates, rounds=100)
    assert found.sigma == pytest.approx(Σ)
    assert (found.v, found.psi, found.phi) == pytest.approx((v, ψ, φ))
    assert found.opt() == pytest.approx((half + v) / pull + ψ + φ / math.log(1 / λ))
    assert found.error() == pytest.approx(found.opt() / sum(rates[:100]))


def test_the_first_rounds_of_a_chain_that_starts_late_count_their_losses() -> None:
    late = chain._replace(start=7)  # as a chain with larger Jordan blocks would
    more = correlated_bound(problem, q, π, late, rates=rates).psi
    assert more - correlated_bound(problem, q, π, chain, rates=rates).psi == pytest.approx(H * sum(rates[:6]))
    assert mixing_lag([1, 5, 7], late._replace(rate=1e-9), H).tolist() == [1, 5, 7]


def test_correlation_makes_it_worse() -> None:
    errors = []
    for λ in (0.0, 0.5, 0.9):
        slow = mixing(*(two_state(x, λ) for x in π))
        errors.append(correlated_bound(problem, q, π, slow, rates=rates).correlation)
    assert errors == sorted(errors)


def test_the_total_error_is_2_10() -> None:
    b = [x * y for x, y in zip(π, q, strict=True)]
    p = [x / sum(b) for x in b]
    χ2 = sum((1 / 3 - x) ** 2 / x for x in p)
    found = total_error(0.3, q, π, target=[1 / 3] * 3, condition=3.0, gap=Γ)
    assert found == pytest.approx(2 * 9 * (0.3 + 9 * χ2 * Γ))


def test_the_limit_of_the_first_rate() -> None:
    assert rate_limit(2.0, 5, 0.9) == pytest.approx(1 / (2 * 2 * (1 + 2 * 5 * 0.9)))


def value(A: Any, v: float, p: Any, x: Any) -> float:
    return float((0.5 * np.sum(A * x * x) + v) / np.sum(p * x))


@given(st.integers(1, 6), st.integers(0, 2**32), st.floats(0.01, 10), st.floats(0.1, 5))
def test_best_weights_solve_the_conditions_of_the_thesis(n: int, seed: int, v: float, Q: float) -> None:
    rng = np.random.default_rng(seed)
    A, p = rng.uniform(0.1, 5, n), rng.uniform(0.05, 1, n)
    best = best_weights(A, v, p, Q)
    assert best.sum() == pytest.approx(Q)
    assert (best >= 0).all()
    least = value(A, v, p, best)
    for other in rng.dirichlet(np.ones(n), 50) * Q:
        near = 0.99 * best + 0.01 * other
        assert least <= min(value(A, v, p, other), value(A, v, p, near)) * (1 + 1e-12)
    free, s = best > 0, 1 / float(p @ best)
    one, two, three = (float((p[free] ** k / A[free]).sum()) for k in range(3))
    if one * three - two**2 > 1e-6 * one * three:
        θ = (two - Q * s * three) / (s * (one * three - two**2))  # (A.207)
        ι = (Q + θ * one) / two  # (A.206)
        assert best[free] == pytest.approx((ι * p[free] - θ) / A[free], rel=1e-5, abs=1e-7 * Q)  # (A.204)
        assert ι * s * three - θ * s * two == pytest.approx(1)  # (A.205)
        assert ((ι * p - θ)[~free] <= 1e-6 * max(1, ι)).all()


def test_best_weights_leave_out_who_is_seldom_there() -> None:
    best = best_weights([1, 1, 1], 0.5, [0.9, 0.8, 0.1], 1.0)
    assert best[2] == 0
    assert best[0] > best[1] > 0


@pytest.mark.parametrize(("n", "gap"), [(3, 0.3), (12, 5.0), (80, 1e-3)])
def test_no_other_weights_have_a_smaller_total_error(n: int, gap: float) -> None:
    rng = np.random.default_rng(n)
    p, a = rng.uniform(0.05, 0.95, n), rng.dirichlet(np.ones(n)) * 0.9 + 0.1 / n
    found = CorrelatedBound(rng.uniform(1, 50, n), 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0)

    def error(x: Any) -> float:
        opt = (0.5 * float(found.sigma @ x**2) + found.v) / float(p @ x) / found.progress
        return total_error(opt, x, p, target=a, condition=2.0, gap=gap)

    best = least_error_weights(found, p, 2.0, target=a, condition=2.0, gap=gap)
    assert best.sum() == pytest.approx(2.0)
    for size in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(15):
            other = best * np.exp(size * rng.standard_normal(n))
            assert error(best) <= error(2 * other / other.sum()) * (1 + 1e-12)
    unbiased, fastest = a / p / (a / p).sum(), best_weights(found.sigma, found.v, p, 2.0)
    far, near = (least_error_weights(found, p, 2.0, target=a, condition=2.0, gap=g) for g in (1e9, 1e-6))
    np.testing.assert_allclose(far, 2 * unbiased, rtol=1e-6)
    np.testing.assert_allclose(near, fastest, atol=2e-2)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda: correlated_bound(problem, q, π, chain, rates=[1.0]), "first rate must be at most"),
        (lambda: correlated_bound(problem, q, π, chain, rates=[0.01, 0.02]), "do not grow"),
        (lambda: correlated_bound(problem, q[:2], π, chain, rates=rates), "one weight of at least 0"),
        (lambda: correlated_bound(problem, q, π, chain, rates=rates, rounds=401), "to the 400 rates .*got 401"),
        (lambda: correlated_bound(problem, q, π, chain, rates=rates, rounds=0), "rounds must be from 1 to"),
        (lambda: total_error(1.0, q, π, target=q, condition=0.5, gap=1.0), "condition must be at least 1"),
        (
            lambda: least_error_weights(
                correlated_bound(problem, q, π, chain, rates=rates), π, 1.0, target=[1, 1, 1], condition=2, gap=1
            ),
            r"weights must sum to 1 .*, got sums of \[3.0\]",
        ),
        (lambda: correlated_bound(problem, [0.0] * 3, π, chain, rates=rates), "above 0"),
        (lambda: Correlated(L, -1.0, Γ, DIAM, D, G, H, K), "noise must be at least 0"),
        (lambda: mixing_lag(0, chain, H), "t must be at least 1"),
        (lambda: mixing_lag([1.0, math.nan], chain, H), "t must be at least 1, in whole numbers"),
        (lambda: mixing_lag(math.inf, chain, H), "t must be at least 1, in whole numbers"),
        (lambda: Correlated(L, math.inf, Γ, DIAM, D, G, H, K), "noise must be at least 0 and finite"),
        (lambda: best_weights([0.0, 1.0], 1.0, [0.5, 0.5], 1.0), "above 0, one per client"),
        (lambda: best_weights([1.0, 1.0], math.inf, [0.9, 0.1], 1.0), "v must be above 0 and finite, got inf"),
        (
            lambda: least_error_weights(endless, π, 1.0, target=[0.5, 0.3, 0.2], condition=2, gap=1),
            "^bound.v must be finite, got inf: ",
        ),
        (lambda: total_error(1.0, q, π, target=[100, 200, 300], condition=1, gap=1.0), r"got sums of \[600.0\]"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(broken: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        broken()

"""The formulas of amplified updates, evaluated plainly, and put into one another."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput
from fedstale.theory import (
    Amplification,
    Amplify,
    amplification,
    amplified_bound,
    amplified_rates,
    corollary_bound,
    delta2,
    delta2_independent,
    delta2_mixing,
    divergence,
    regularized_bound,
    stochastic_bound,
    stochastic_period,
    stochastic_rates,
    weight_variance,
)

L, σ2, F, I, T, ρ = 2.0, 0.7, 3.0, 5, 400, 0.5  # noqa: E741
problem = Amplify(smoothness=L, noise=σ2, excess=F, steps=I, rounds=T, concentration=ρ)
turns = np.eye(4, dtype=bool)[np.arange(40) % 4]
ν2, β2, δ2 = 0.3, 0.2, 0.1
given_terms: Any = {"within": ν2, "between": β2, "participation": δ2}


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_divergences_are_equations_4_to_7(seed: int, P: int) -> None:
    rng = np.random.default_rng(seed)
    here, g = (rng.random((8, 3)) < 0.6) * (rng.random((8, 3)) if seed % 2 else 1.0), rng.standard_normal((3, 2))
    f, rows = g.mean(axis=0), []
    between = within = window = 0.0
    for row in here:
        q = [float(x) / (row.sum() or 1) for x in row]  # own weights, or alike
        met = sum(x * v for x, v in zip(q, g, strict=True))
        rows.append(sum(x * (v - f) for x, v in zip(q, g, strict=True)))
        between = max(between, float(np.sum(rows[-1] ** 2)))
        within = max(within, sum(x * float(np.sum((v - met) ** 2)) for x, v in zip(q, g, strict=True)))
    for start in range(0, 8 // P * P, P):
        window = max(window, float(np.sum(np.mean(rows[start : start + P], axis=0) ** 2)))
    found = divergence(here, g, P)
    d2 = max(float(np.sum((v - f) ** 2)) for v in g)
    assert tuple(found) == pytest.approx((between, within, window, d2), abs=1e-12)
    assert found.window <= delta2(here, P, divergence=d2) + 1e-9  # (15)
    assert divergence(here, g).window == pytest.approx(found.between)
    for row in here:
        alone = divergence([row], g)
        assert alone.between + alone.within <= d2 + 1e-9  # Proposition 4.1


def test_theorem_3_1_term_by_term() -> None:
    γ, η, P = 0.0005, 3.0, 8
    found = amplified_bound(problem, Amplification(γ, η, P), **given_terms)
    assert tuple(found) == pytest.approx(
        (
            F / (γ * η * I * T),
            γ**2 * L**2 * I**2 * ν2,
            γ**2 * L**2 * I**2 * P**2 * β2,
            δ2,
            (γ**2 * L**2 * I + γ**2 * L**2 * I * P * ρ**2 + γ * η * L * ρ**2) * σ2,
        )
    )
    assert found.total() == pytest.approx(sum(found))


@pytest.mark.parametrize(("noise", "P"), [(0.7, 3), (50.0, 3), (0.0, 20), (1e-4, 150)])
def test_corollary_3_2_is_the_theorem_at_its_rates(noise: float, P: int) -> None:
    here = replace(problem, noise=noise)
    γ, η, _ = settings = amplified_rates(here, P)
    assert γ == pytest.approx(1 / (12 * L * I * P * math.sqrt(T)))
    wish = 12 * P * math.sqrt(L * I * F) / (math.sqrt(noise) * ρ) if noise else math.inf
    assert η == pytest.approx(min(wish, 12 * math.sqrt(T)))
    theorem = amplified_bound(here, settings, **given_terms)
    corollary = corollary_bound(here, P, **given_terms)
    sgd = math.sqrt(noise) * ρ * math.sqrt(L * F) / math.sqrt(I * T)
    nine = sgd + L * P * F / T + ν2 / (P * P * T) + β2 / T + δ2 + noise / (I * P * T)
    assert corollary.total() == pytest.approx(nine)
    assert theorem.total() <= 2 * nine  # O(·): the terms are the same up to factors of at most 2
    assert theorem.start <= sgd + L * P * F / T + 1e-12
    assert theorem.within == pytest.approx(corollary.within / 144)


def test_corollary_3_3_is_the_theorem_at_its_rates() -> None:
    P, F = 2, 1.0
    small = replace(problem, excess=F)
    γ, η, _ = settings = stochastic_rates(small, P)
    assert η == pytest.approx(12 * P * math.sqrt(L * I * F) / ρ)
    assert γ * η == pytest.approx(math.sqrt(F) / (ρ * math.sqrt(L * I * T)))
    sgd = ρ * math.sqrt(L * F) / math.sqrt(I * T)
    ten = (1 + σ2) * sgd + ν2 / (P * P * T) + β2 / T + δ2 + σ2 / (I * P * T)
    assert corollary_bound(small, P, **given_terms, stochastic=True).total() == pytest.approx(ten)
    assert amplified_bound(small, settings, **given_terms).start == pytest.approx(sgd)


def test_corollaries_4_3_and_4_8() -> None:
    sgd, d2, N = ρ * math.sqrt(L * F) / math.sqrt(I * T), 1.3, 4
    fourteen = math.sqrt(σ2) * sgd + (L * 6 * F + d2 + σ2) / T
    assert regularized_bound(problem, 6, divergence=d2) == pytest.approx(fourteen)
    eighteen = (1 + σ2) * sgd + d2 / math.sqrt(N * I * T) + (d2 + σ2) / T
    assert stochastic_bound(problem, N, divergence=d2) == pytest.approx(eighteen)
    even = replace(problem, steps=1, excess=0.01)
    P = stochastic_period(even, N, 0.05)
    assert P == math.floor(0.05 * 4**2.5 * math.sqrt(T)) == 32
    assert delta2_independent(N, 0.05, 32, divergence=d2) == pytest.approx(d2 / math.sqrt(N * T))  # as (18) has it
    assert stochastic_rates(even, P).period == P  # the conditions of 4.8 are those of 3.3


@pytest.mark.parametrize("P", [1, 2, 5])
def test_proposition_4_7_over_all_outcomes(P: int) -> None:
    """One of two clients comes, by a fair coin: Var(q) = 1/4."""
    found = [
        delta2(np.array([[face, not face] for face in faces]), P)
        for faces in itertools.product([True, False], repeat=P)
    ]
    assert np.mean(found) == pytest.approx(delta2_independent(2, 0.25, P))
    assert np.mean(found) == pytest.approx(delta2_mixing(2, 0.25, P))
    for c in (0.5, 0.1):
        assert np.mean(np.array(found) <= delta2_independent(2, 0.25, P, failure=c)) >= 1 - c
        assert np.mean(np.array(found) <= delta2_mixing(2, 0.25, P, failure=c)) >= 1 - c
    assert delta2_independent(3, 0.2, 7, divergence=2.0, failure=0.1) == pytest.approx(9 * 2 * math.log(20) / 14)
    assert delta2_mixing(3, 0.2, 7, divergence=2.0, failure=0.1) == pytest.approx(9 * 2 * 0.2 / 0.7)


def test_the_variance_of_weights() -> None:
    assert weight_variance(turns) == pytest.approx(3 / 16)  # 1 with probability 1/4
    rng = np.random.default_rng(0)
    first = rng.random(20_000) < 0.5
    coins = np.stack([first, ~first], axis=1)
    assert weight_variance(coins, lags=3) == pytest.approx(0.25, abs=0.03)
    slow = np.repeat(coins, 4, axis=0)  # each toss lasts four rounds: 4 Var
    assert weight_variance(slow, lags=8) == pytest.approx(1.0, abs=0.08)


def test_own_weights_can_make_up_for_who_comes_often() -> None:
    here = np.array([[1, 1, 0], [1, 0, 1]] * 6)
    assert delta2(here, 2) > 0.1
    own = here * [1.0, 2.0, 2.0]  # 1/3 and 2/3 of a round: everybody has 2/3 of two rounds
    assert delta2(own, 2) == pytest.approx(0)  # Proposition 4.2
    assert amplification(problem, own, divergence=100.0) == amplified_rates(problem, 4)  # 2 drifts, 3 is unequal


def test_the_advice_for_clients_in_turn_is_to_wait_for_all() -> None:
    found = amplification(problem, turns, divergence=100.0)
    assert found == amplified_rates(problem, 4)
    always = amplification(problem, np.ones((40, 4), bool), divergence=0.0)
    assert always.period <= 2  # nothing to wait for, so the least of LPF/T and σ²/(IPT)
    by_hand = [
        corollary_bound(
            problem, P, within=9.0, between=9.0, participation=delta2(turns[:9], P, divergence=9.0)
        ).total()
        for P in range(1, 5)
    ]
    assert amplification(problem, turns[:9], divergence=9.0).period == 1 + int(np.argmin(by_hand))


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda: amplified_rates(problem, 201), "half of the 400 rounds, got 201"),
        (lambda: amplified_bound(problem, Amplification(1.0, 1.0, 1), **given_terms), "1/\\(12LIP\\)"),
        (lambda: amplified_bound(problem, Amplification(1e-3, 1e4, 1), **given_terms), "1/\\(LIP\\)"),
        (lambda: stochastic_rates(problem, 100), "√F/"),
        (lambda: corollary_bound(problem, 100, **given_terms, stochastic=True), "√F/"),
        (lambda: stochastic_period(problem, 4, 0.2), "steps must be at most"),
        (lambda: stochastic_period(replace(problem, steps=1, excess=1e-9), 40, 0.2), "rounds must be at least"),
        (lambda: regularized_bound(problem, 2, divergence=-1.0), "at least 0 and finite, got -1"),
        (lambda: corollary_bound(problem, 2, **{**given_terms, "between": np.nan}), "between must be .*, got nan"),
        (
            lambda: corollary_bound(problem, 2, **{**given_terms, "participation": "x"}),
            "participation must be a number",
        ),  # type: ignore[arg-type]
        (
            lambda: amplified_bound(problem, Amplification(1e-6, 1.0, 1), **{**given_terms, "participation": None}),
            "got None",
        ),  # type: ignore[arg-type]
        (lambda: delta2_independent(2, "x", 1, failure=0.1), "variance must be a number, got 'x'"),  # type: ignore[arg-type]
        (lambda: amplification(problem, turns, divergence=np.inf), "divergence must be at least 0 and finite"),
        (
            lambda: amplification(problem, turns.astype(bool), divergence="x"),
            "divergence must be a number, got 'x'",
        ),  # type: ignore[arg-type]
        (
            lambda: amplification(problem, np.zeros((9, 2)), divergence=1.0),
            r"^somebody must come in some round, got shape \(9, 2\)",
        ),
        (lambda: Amplify(1.0, np.inf, 1.0, 1, 10), "noise must be at least 0 and finite, got inf"),
        (
            lambda: amplified_bound(problem, Amplification(1e-4, 1.0, 2.5), **given_terms),  # type: ignore[arg-type]
            "period must be a whole number from 1 to half of the .*, got 2.5",
        ),
        (lambda: delta2([[-1, 2]], 1), r"of weights from 0, got \[\[-1, 2\]\]$"),
        (lambda: amplified_rates(problem, 5.5), "period must be a whole number, got 5.5"),  # type: ignore[arg-type]
        (lambda: Amplify(1.0, 1.0, 1.0, 1, 1), "rounds must be at least 2"),
        (lambda: Amplify(1.0, 1.0, 1.0, 1, 10, 2.0), "concentration"),
        (lambda: divergence(turns, np.ones((3, 2))), "n = 4"),
        (lambda: divergence(turns, np.full((4, 2), np.nan)), "gradients must be finite"),
        (lambda: weight_variance(turns, 40), "below the 40 rounds"),
        (lambda: delta2_mixing(2, 0.1, 1, failure=0.0), "failure must be"),
        (lambda: delta2_independent(0, 0.1, 1), "n must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(broken: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        broken()

"""The spectrum of Markov participation, by powers of matrices and by hand."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput
from fedstale.participation import Markov
from fedstale.theory import mixing, mixing_time, mixing_time_bounds, product_chain, stationary, two_state

shares = st.floats(0.1, 0.9)
memories = st.floats(-0.1, 0.95)
DEFECTIVE = 1 / 3 + 0.1 * np.outer([1, -1, 0], [1, 1, -2])  # eigenvalues 1, 0, 0 and two eigenvectors


@given(shares, memories)
def test_one_client_by_hand(π: float, λ: float) -> None:
    P = two_state(π, λ)
    found = mixing(P)
    assert stationary(P) == pytest.approx([1 - π, π])
    assert found.second == pytest.approx(abs(λ), abs=1e-9)
    assert found.rate == pytest.approx((abs(λ) + 1) / 2)
    assert found.relaxation == pytest.approx(1 / (1 - abs(λ)))
    assert (found.start, found.states) == (0, 2)
    assert found.rho_min == pytest.approx(min(π, 1 - π))
    # eigenvectors (1, 1)/√2 and (π, π-1)/norm: ‖U‖_F = √2, and ‖U⁻¹‖_F = ‖U‖_F / |det U| for 2 × 2
    determinant = 1 / (math.sqrt(2) * math.hypot(π, 1 - π))
    assert found.constant == pytest.approx(2 / determinant)


@given(st.lists(st.tuples(shares, memories), min_size=1, max_size=3))
def test_powers_stay_below_equation_2_5(clients: list[tuple[float, float]]) -> None:
    chains = [two_state(π, λ) for π, λ in clients]
    P, found = product_chain(*chains), mixing(*chains)
    ρ = stationary(P)
    values = np.sort(np.abs(np.linalg.eigvals(P)))
    assert found.second == pytest.approx(values[-2], abs=1e-7)
    assert found.states == len(P) == 2 ** len(clients)
    assert found.rho_min == pytest.approx(ρ.min())
    for t in range(12):
        assert np.abs(np.linalg.matrix_power(P, t) - ρ).max() <= found.distance(t) + 1e-12


def test_the_product_is_entry_by_entry_and_needs_no_matrix() -> None:
    a, b = two_state(0.3, 0.5), two_state(0.6, 0.2)
    P = product_chain(a, b)
    for x, y, z, w in np.ndindex(2, 2, 2, 2):
        assert P[2 * x + y, 2 * z + w] == pytest.approx(a[x, z] * b[y, w])  # (A.210)
    together = mixing(P)  # eigenvalues 1, .5, .2, .1 are distinct, so U is the product's too
    assert mixing(a, b) == pytest.approx(tuple(together))
    assert mixing(*[a] * 100).states == 2.0**100
    assert mixing(*[a] * 3000).constant == math.inf
    assert mixing([[1.0]]).second == 0


@given(shares, st.floats(0.05, 0.95), st.floats(0.01, 0.4))
def test_the_mixing_time_is_the_first_round_that_is_near(π: float, λ: float, eps: float) -> None:
    # ‖[P^t]_a - ρ‖_TV = λ^t max(π, 1 - π)
    t = next(t for t in range(10_000) if λ**t * max(π, 1 - π) <= eps * (1 + 1e-12))
    found = mixing_time(two_state(π, λ), eps)
    assert abs(found - t) <= (0 if abs(λ**t * max(π, 1 - π) - eps) > 1e-9 else 1)
    low, high = mixing_time_bounds(mixing(two_state(π, λ)), eps)
    assert low <= found + 1e-9
    assert found <= math.ceil(high)


def test_a_chain_with_too_few_eigenvectors_mixes_too() -> None:
    assert mixing_time(DEFECTIVE, 0.01) == 2  # N² = 0


def test_the_chain_is_that_of_the_participation() -> None:
    rows = Markov(0.4, 0.7).rows(2000, np.random.default_rng(0))
    now, then = next(rows), next(rows)
    P = two_state(0.4, 0.7)
    assert then[now].mean() == pytest.approx(P[1, 1], abs=0.04)
    assert then[~now].mean() == pytest.approx(P[0, 1], abs=0.04)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda: two_state(1.0, 0.5), "availability must be above 0"),
        (lambda: two_state(0.5, 1.0), "eigenvalue must be below 1"),
        (lambda: two_state(0.9, -0.9), "leave probabilities"),
        (lambda: mixing(), "needs a chain"),
        (lambda: mixing(np.eye(2)), "irreducible"),
        (lambda: mixing([[0, 1], [1, 0]]), "aperiodic"),
        (lambda: mixing([[0.5, 0.4], [0.5, 0.5]]), "rows are probabilities"),
        (lambda: mixing(DEFECTIVE), "diagonalisable"),
        (lambda: mixing_time(two_state(0.5, 0.5), 0.0), "eps must be"),
        (lambda: mixing_time([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]], 1e-30), "rounding"),
        (lambda: product_chain(*[two_state(0.5, 0.5)] * 13), "at most 4096 states"),
        (lambda: product_chain(), "product_chain needs a chain, got none"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(broken: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        broken()

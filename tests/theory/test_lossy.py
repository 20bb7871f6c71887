"""Theorem 4.3.1 of the thesis and Chen's bound, in plain Python and round by round."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput
from fedstale.theory import Lossy, dma_bound, loss_variance, lossy_constant, retries, upga_bound, upga_rate

q, α, σ2 = [0.1, 0.9, 0.5], [0.5, 0.2, 0.3], [1.0, 2.0, 0.5]
problem = Lossy(smoothness=4.0, convexity=0.5, noise=σ2, gap=0.3, stochastic_gradient=1.5, steps=5)


def test_theorem_4_3_1_term_by_term() -> None:
    L, μ, Γ, G, K, t = 4.0, 0.5, 0.3, 1.5, 5, 70
    noise = sum(a * a * s for a, s in zip(α, σ2, strict=True))
    losses = K * G**2 * sum(a * a * x / (1 - x) for a, x in zip(α, q, strict=True))
    found = lossy_constant(problem, q, α)
    assert tuple(found) == pytest.approx((noise, 2 * 4**2 * G**2, 6 * L * Γ, losses))
    κ, C = L / μ, noise + 2 * (K - 1) ** 2 * G**2 + 6 * L * Γ + losses
    expected = κ / (8 * κ + t) * (2 * K * C / μ + 4 * L * 3.0**2)
    assert upga_bound(problem, q, t, distance=3.0, weights=α) == pytest.approx(expected)


def test_the_bound_solves_the_recursion_of_its_proof() -> None:
    """(C.10): d ← (1 - η μ) d + η² K C, and F - F* ≤ L/2 d."""
    C, d = lossy_constant(problem, q, α).total(), 9.0
    for t in range(1, 300):
        η = upga_rate(problem, t)
        d = (1 - η * 0.5) * d + η**2 * 5 * C
        assert 4.0 / 2 * d <= upga_bound(problem, q, t, distance=3.0, weights=α) * (1 + 1e-12)
    assert upga_rate(problem, 1) == pytest.approx(1 / (4 * 4.0))  # η_1 = 1 / 4L


def test_lemma_a_1_over_all_ways_in_which_messages_get_lost() -> None:
    """(C.4) for models; for updates of K steps with gradients of at most G it is below (C.3)."""
    sent = [[1.0, -2.0], [0.5, 3.0], [4.0, 0.0]]
    mean = [sum(a * x[k] for a, x in zip(α, sent, strict=True)) for k in range(2)]
    expected = 0.0
    for here in itertools.product((0, 1), repeat=3):
        chance = math.prod(1 - x if s else x for s, x in zip(here, q, strict=True))
        step = [sum(s * a / (1 - x) * v[k] for s, a, x, v in zip(here, α, q, sent, strict=True)) for k in range(2)]
        expected += chance * sum((b - c) ** 2 for b, c in zip(step, mean, strict=True))
    assert loss_variance(sent, q, α) == pytest.approx(expected)
    longest = max(math.hypot(*x) for x in sent)  # η K G
    assert loss_variance(sent, q, α) <= longest**2 * sum(a * a * x / (1 - x) for a, x in zip(α, q, strict=True))
    with pytest.raises(BadInput, match="sent must be a finite vector for each of 3 clients"):
        loss_variance([[1.0], [2.0]], q, α)


def test_retransmissions_against_time() -> None:
    """Rounds by trial, and the slots of a round by all ways in which three clients can fail."""
    for found in retries(problem, q, 7.9, distance=3.0, training=2.5, most=3, weights=α):
        R = found.retries
        left = [x ** (R + 1) for x in q]
        assert upga_bound(problem, left, found.rounds, distance=3.0, weights=α) <= 7.9
        assert found.rounds == 1 or upga_bound(problem, left, found.rounds - 1, distance=3.0, weights=α) > 7.9
        slots = 0.0
        for sent in itertools.product(range(1, R + 2), repeat=3):  # transmissions of each client
            ways = [x ** (k - 1) * (1 - x if k <= R else 1) for x, k in zip(q, sent, strict=True)]
            slots += math.prod(ways) * max(sent)
        assert found.slots == pytest.approx(slots)
        assert found.time == pytest.approx(found.rounds * (2.5 + slots))


def test_the_best_number_of_retransmissions_lies_between_none_and_many() -> None:
    lossy = Lossy(smoothness=1.0, convexity=0.5, noise=0.0, gap=0.0, stochastic_gradient=1.0, steps=1)
    times = [found.time for found in retries(lossy, [0.9] * 10, 0.01, distance=2.0, training=50.0)]
    assert 0 < times.index(min(times)) < 30
    assert {f.slots for f in retries(lossy, [0.0, 0.0], 0.01, distance=1.0, most=2)} == {1.0}
    with pytest.raises(BadInput, match="target must be above 0"):
        retries(lossy, [0.5], 0.0, distance=1.0)


@given(st.floats(0, 3), st.floats(0, 3), st.integers(1, 40), st.floats(0, 5))
def test_chens_bound_round_by_round(zeta1: float, zeta2: float, t: int, excess: float) -> None:
    lost = sum(a * x for a, x in zip(α, q, strict=True))
    A = 1 - 0.5 / 4 + 4 * 0.5 * zeta2 / 4 * lost
    error = excess
    for _ in range(t):
        error = A * error + 2 * zeta1 / 4 * lost
    found = dma_bound(problem, q, t, zeta1=zeta1, zeta2=zeta2, excess=excess, weights=α)
    assert found.total() == pytest.approx(error, rel=1e-6, abs=1e-12)
    assert found.contraction == pytest.approx(A)


def test_only_one_of_the_two_errors_vanishes() -> None:
    dma = dma_bound(problem, q, 10**6, zeta1=1.0, zeta2=0.1, excess=1.0)
    assert dma.total() == pytest.approx(dma.floor)
    assert dma.floor > 0.1
    assert upga_bound(problem, q, 10**8, distance=3.0) < 0.001
    assert dma_bound(problem, q, 10, zeta1=1.0, zeta2=9.0, excess=1.0).floor == math.inf
    assert dma_bound(problem, [0.0, 0.0, 0.0], 10**6, zeta1=1.0, zeta2=9.0, excess=1.0).total() < 1e-9
    even = dma_bound(Lossy(1.0, 1.0, 0.0, 0.0, 1.0, 1), [0.5], 7, zeta1=1.0, zeta2=0.5, excess=2.0)
    assert (even.contraction, even.start, even.residual) == (1.0, 2.0, 7.0)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda: lossy_constant(problem, [1.0, 0.0, 0.0]), "in \\[0, 1\\)"),
        (lambda: Lossy(1.0, 2.0, 0.0, 0.0, 1.0, 1), "at most smoothness"),
        (lambda: Lossy(math.inf, 2.0, 0.0, 0.0, 1.0, 1), "smoothness must be above 0 and finite, got inf"),
        (lambda: Lossy(1.0, 1.0, -1.0, 0.0, 1.0, 1), "must be at least 0"),
        (lambda: upga_bound(problem, q, 0, distance=1.0), "rounds must be at least 1"),
        (lambda: upga_rate(problem, 0), "t must be at least 1"),
        (lambda: dma_bound(problem, q, 1, zeta1=-1.0, zeta2=0.0, excess=0.0), "zeta1"),
        (lambda: dma_bound(problem, q, 1, zeta1=1.0, zeta2=math.nan, excess=0.0), "zeta2 must be .*, got nan"),
        (lambda: retries(problem, q, 0.1, distance=1.0, most=10**9), r"most must be in \[0, 10000\]"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(broken: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        broken()

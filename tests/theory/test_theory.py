"""The formulas of the papers, once more and by other ways."""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput, Local
from fedstale.engines.serial import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies import FedStale
from fedstale.tasks.quadratic import Quadratic
from fedstale.theory import (
    Bound,
    Counts,
    Problem,
    best_beta,
    bias_bound,
    biased_weights,
    bound,
    chi_square,
    delta2,
    least_rounds,
    limits,
    lower_bound,
    plain_weights,
    spread,
    summary,
    total_variation,
)

probabilities = st.lists(st.floats(0.01, 1), min_size=1, max_size=6)
shares = st.floats(0, 1)
matrices = st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**32)).map(
    lambda s: np.random.default_rng(s[2]).random((s[0], s[1])) < np.random.default_rng(s[2] + 1).random(s[1])
)
problems = st.builds(
    Problem,
    smoothness=st.floats(0.1, 10),
    noise=st.floats(0, 10),
    diversity=st.floats(0.01, 10),
    steps=st.integers(1, 10),
    client_lr=st.floats(1e-3, 0.1),
)


@given(probabilities)
def test_spread_is_the_three_means_of_theorem_1(p: list[float]) -> None:
    exact = [Fraction(x) for x in p]
    variance = sum((1 - x) / x for x in exact) / len(p)
    p_var, p_avg, p_min = spread(p)
    assert p_var == pytest.approx(float(1 / variance) if variance else math.inf, rel=1e-9)
    assert p_avg == pytest.approx(float(sum(exact) / len(p)))
    assert p_min == min(p)


def test_spread_at_the_ends() -> None:
    assert spread([1.0, 1.0]) == (math.inf, 1.0, 1.0)
    assert spread([1.0, 0.0]) == (0.0, 0.5, 0.0)
    assert spread([0.5, 0.25]) == pytest.approx((0.5, 0.375, 0.25))  # 1 / mean(1, 3)


def unfolded(problem: Problem, p: list[float], beta: float, T: int, lr: float, excess: float, H: float) -> Bound:
    """4 / (η T) times what Lemmas 10 and 11 let into ψ, round by round; the first round as in eq. (142)."""
    N, L, K, c = len(p), problem.smoothness, problem.steps, problem.client_lr
    η, V, inverse = lr * c * K, sum((1 - x) / x for x in p) / N, sum(1 / x for x in p) / N
    avg, low = sum(p) / N, min(p)
    away = 2 * c**2 * L**2 * K * (K - 1)  # Lemma 5: times σ²/K + 4 σ_g²
    noise = diversity = 0.0
    for t in range(1, T + 1):
        bracket = η / 2 + 6 * η**2 * L / N * V + 12 * beta**2 * η**2 * L * V * avg / low
        fresh = η**2 * L / N * inverse + 12 * beta**2 * η**2 * L * V * avg / low
        noise += (fresh + bracket * away) * problem.noise / K
        sampled = 3 * η**2 * L / N * V if t == 1 else 6 * η**2 * L * (1 - beta) ** 2 / N * V
        diversity += (sampled + bracket * away * 4) * problem.diversity
    memory = 12 * beta**2 * η**2 * L * V * (1 - low) / low * H
    return Bound(*(4 / (η * T) * x for x in (excess, memory, noise, diversity)))


@given(problems, probabilities, shares, st.integers(1, 20), st.floats(0.1, 2), st.floats(0, 5), st.floats(0, 5))
def test_the_bound_is_what_the_lemmas_add_up_to(
    problem: Problem, p: list[float], beta: float, T: int, lr: float, excess: float, H: float
) -> None:
    got = bound(problem, p, beta, rounds=T, server_lr=lr, excess=excess, memory_error=H)
    due = unfolded(problem, p, beta, T, lr, excess, H)
    assert got == pytest.approx(due, rel=1e-9)
    assert got.total() == pytest.approx(sum(due), rel=1e-9)


def test_the_bound_of_plain_sgd_by_hand() -> None:
    # all four clients always there, one local step: η = 0.1, L = 2, so 4·3 / (0.1·10) and 4·0.1·2 / 4 · σ²
    got = bound(Problem(2.0, 5.0, 7.0, 1, 0.1), [1.0] * 4, 0.5, rounds=10, excess=3.0, memory_error=9.0)
    assert got == pytest.approx((12.0, 0.0, 1.0, 0.0))


def test_a_simulation_stays_below_the_bound() -> None:
    centers, p, beta = np.array([[0.0], [1.0], [2.0], [5.0]]), [0.9, 0.8, 0.5, 0.4], 0.5
    task = Quadratic(centers, noise=0.5, start=[10.0])  # all A_i = I: ∇F_i - ∇F is the same everywhere
    problem = Problem(1.0, 0.25, float(((centers - centers.mean()) ** 2).max()), 3, 1 / 24)
    client, server, product = limits(p, beta, smoothness=1.0, steps=3)
    assert problem.client_lr <= client
    assert server >= 1.0
    assert 1.0 * problem.client_lr * 3 <= product
    engine = Serial(task, Local(lr=problem.client_lr, steps=3, batch=1))
    rounds, gradients = 60, []
    for seed in range(5):
        run = simulate(engine, FedStale(beta), Bernoulli(p), rounds=rounds, seed=seed)
        gradients.append([float(s.params[0] - centers.mean()) ** 2 for s in run])
    excess, H = 0.5 * (10 - 2) ** 2, float(((10 - centers) ** 2).mean())
    bounded = bound(problem, p, beta, rounds=rounds, excess=excess, memory_error=H)
    assert 0 < np.mean(gradients, axis=0).min() < bounded.total()


@given(problems, probabilities)
def test_best_beta_is_where_the_bound_of_a_long_run_is_least(problem: Problem, p: list[float]) -> None:
    def total(beta: float) -> float:
        return bound(problem, p, beta, rounds=10**12).total()

    best = best_beta(problem, p)
    assert 0 <= best <= 1
    # a parabola in β, so three values give its lowest point
    y0, y1, y2 = total(0), total(0.5), total(1)
    bend = 2 * (y0 - 2 * y1 + y2)
    if bend > 1e-3 * y0:  # else rounding decides
        assert best == pytest.approx((3 * y0 - 4 * y1 + y2) / (2 * bend), abs=1e-6)


def test_best_beta_by_hand_and_the_way_it_goes() -> None:
    # N = 2, p_avg / p_min = 2, K = 1, σ² = 1, σ_g² = 8: 4 / (2·2·1 + 4)
    assert best_beta(Problem(1.0, 1.0, 8.0, 1, 0.1), [0.9, 0.3]) == pytest.approx(0.5)
    assert best_beta(Problem(1.0, 1.0, 0.0, 1, 0.1), [0.9, 0.3]) == 0.0
    assert best_beta(Problem(1.0, 0.0, 1.0, 1, 0.1), [0.9, 0.3]) == 1.0
    diverse = [best_beta(Problem(1.0, 1.0, g, 5, 0.01), [1.0, 0.1]) for g in (0.1, 1.0, 10.0)]
    uneven = [best_beta(Problem(1.0, 1.0, 1.0, 5, 0.01), [1.0, low]) for low in (1.0, 0.5, 0.1, 0.01)]
    assert diverse == sorted(diverse)  # guideline A
    assert uneven == sorted(uneven, reverse=True)  # guideline B


@given(st.lists(st.floats(0.01, 0.99), min_size=2, max_size=6), shares, st.floats(0.1, 10), st.integers(1, 10))
def test_limits(p: list[float], beta: float, L: float, K: int) -> None:
    N, V, avg, low = len(p), sum((1 - x) / x for x in p) / len(p), sum(p) / len(p), min(p)
    client, server, product = limits(p, beta, smoothness=L, steps=K)
    assert client == pytest.approx(1 / (8 * L * K))
    fresh = N / (12 * (1 - beta) ** 2 * V) if beta < 1 else math.inf
    stale = 1 / (3 * beta**2 * V * avg / low) if beta**2 > 0 else math.inf
    assert server == pytest.approx(min(fresh, stale))
    assert server <= 2 * N / (3 * V) * (1 + 1e-9)  # the third of eq. (104)
    if beta > 1e-3:
        assert product <= math.sqrt(N / (24 * V)) / (beta * L) * (1 + 1e-9)
        again = 12 * (beta * product * L) ** 2 * V * (1 - avg) * (2 - low) / low**2
        first = 6 * (beta * product * L) ** 2 * V / N
        assert max(again, first) == pytest.approx(0.25)  # (121), (122): one of them is just met


def test_limits_where_nothing_limits() -> None:
    assert limits([1.0, 1.0], 0.5, smoothness=2.0, steps=4) == (1 / 64, math.inf, math.inf)
    assert limits([0.5, 0.5], 0.0, smoothness=1.0, steps=1) == (1 / 8, 2 / 12, math.inf)


@given(st.floats(0.001, 1), st.integers(1, 10**5), st.floats(0.1, 10), st.floats(0.1, 10))
def test_lower_bound_and_the_rounds_it_asks_for(p_min: float, t: int, L: float, excess: float) -> None:
    k = 3 + 2 * p_min * t  # E[k_t] of eq. (159), into eq. (158)
    due = 6 * L * excess / ((k + 1) * (2 * k + 3) ** 2)
    assert lower_bound(p_min, t, smoothness=L, excess=excess) == pytest.approx(due)
    assert least_rounds(p_min, due, smoothness=L, excess=excess) == pytest.approx(t, rel=1e-6)
    rare = least_rounds(p_min / 10, due, smoothness=L, excess=excess)
    assert rare == pytest.approx(10 * t, rel=1e-6)  # Ω(1 / p_min)


def test_no_rounds_are_asked_for_what_holds_at_the_start() -> None:
    assert least_rounds(0.1, 3 / 162) == pytest.approx(0, abs=1e-9)
    assert least_rounds(0.1, 1.0) == 0.0
    assert least_rounds(0.0, 1e-3) == math.inf


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 1)), min_size=1, max_size=6))
def test_distances_between_weights(pairs: list[tuple[float, float]]) -> None:
    a, b = (np.array(x) for x in zip(*pairs, strict=True))
    assert total_variation(a, b) == pytest.approx(sum(abs(x - y) for x, y in pairs) / 2)
    assert chi_square(a, b) == pytest.approx(sum((x - y) ** 2 / y for x, y in pairs))


def test_distances_at_the_ends() -> None:
    assert total_variation([1, 0], [0, 1]) == 1.0
    assert chi_square([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert chi_square([1.0, 0.0], [1.0, 0.0]) == 0.0


@given(st.integers(2, 5), st.integers(0, 2**32))
def test_the_bias_of_the_wrong_weights_stays_below_both_bounds(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n)) * 0.98 + 0.02 / n
    curvature = rng.uniform(0.5, 2.0, (n, 3))
    task = Quadratic(rng.standard_normal((n, 3)), curvature, weights=a)
    best, biased = task.optimum(a), task.optimum(b)

    def gap(w: Any) -> float:  # F_i* = 0
        return max(0.5 * float(((w - c) ** 2 * A).sum()) for c, A in zip(task.centers, curvature, strict=True))

    κ = curvature.max() / curvature.min()
    bias = task.objective(biased) - task.objective(best)
    by_chi_square, by_variation = bias_bound(a, b, condition=κ, gap=gap(best), gap_b=gap(biased))
    assert -1e-6 <= bias <= min(by_chi_square, by_variation) + 1e-6
    assert by_variation == pytest.approx(κ**2 * float(np.abs(a - b).sum()) ** 2 * gap(biased))
    assert by_chi_square == pytest.approx(κ**2 * float(((a - b) ** 2 / b).sum()) * gap(best))


def test_biased_weights() -> None:
    assert biased_weights([0.9, 0.1]) == pytest.approx([0.9, 0.1])
    assert biased_weights([0.5, 0.25], [1, 3]) == pytest.approx([0.4, 0.6])  # ½·¼ : ¼·¾ is 2 : 3
    with pytest.raises(BadInput, match="somebody"):
        biased_weights([0.0, 0.0])


@given(matrices)
def test_plain_weights_are_the_mean_over_rounds(matrix: Any) -> None:
    a = np.arange(1.0, matrix.shape[1] + 1)
    rounds = [[x * here for x, here in zip(a, row, strict=True)] for row in matrix.tolist() if any(row)]
    if not rounds:
        with pytest.raises(BadInput, match="somebody"):
            plain_weights(matrix, a)
        return
    due = np.mean([[x / sum(row) for x in row] for row in rounds], axis=0)
    assert plain_weights(matrix, a) == pytest.approx(due)


@given(matrices, st.data())
def test_delta2_is_equation_15_and_bounds_equation_7(matrix: Any, data: st.DataObject) -> None:
    rounds, n = matrix.shape
    period = data.draw(st.integers(1, rounds))
    gradients = np.random.default_rng(0).standard_normal((n, 3))
    gradients -= gradients.mean(axis=0)  # ∇F_i - ∇f
    d2 = float((gradients**2).sum(axis=1).max())
    worst = 0.0
    for begin in range(0, rounds - period + 1, period):
        q = [0.0] * n
        for row in matrix[begin : begin + period].tolist():
            q = [x + here / max(sum(row), 1) / period for x, here in zip(q, row, strict=True)]
        mean = sum(q) / n
        due = n * sum((x - mean) ** 2 for x in q) * d2
        assert float((np.array(q) @ gradients) @ (np.array(q) @ gradients)) <= due + 1e-9  # eq. (7)
        worst = max(worst, due)
    assert delta2(matrix, period, divergence=d2) == pytest.approx(worst, abs=1e-12)


def test_delta2_of_taking_turns() -> None:
    turns = np.tile(np.eye(4, dtype=int), (5, 1))
    assert delta2(turns, 4) == pytest.approx(0)  # regularised: Proposition 4.2
    assert delta2(turns, 1) == pytest.approx(3)  # n Σ (q_i - 1/n)² of one client alone is n - 1
    with pytest.raises(BadInput, match="period must be between 1 and the 20 rounds, got 21"):
        delta2(turns, 21)


def test_summary_by_hand() -> None:
    #  client:  0  1  2
    matrix = [[1, 0, 1],
              [1, 0, 1],
              [0, 1, 1],
              [1, 1, 1]]  # fmt: skip
    s = summary(matrix)
    assert (s.rounds, s.clients) == (4, 3)
    assert s.marginals == pytest.approx([0.75, 0.5, 1.0])
    assert s.spread == pytest.approx((1 / ((1 / 3 + 1 + 0) / 3), 0.75, 0.5))
    assert s.on.histogram.tolist() == [0, 1, 2, 0, 1]  # lengths 2 and 1; 2; 4
    assert s.off.histogram.tolist() == [0, 1, 1]  # 1; 2
    assert s.on.mean == pytest.approx(9 / 4)
    assert s.off.quantiles.tolist() == [1, 1, 1, 2, 2]
    assert s.mixing == pytest.approx([0.5 - 1, 1 - 0.5, 0])  # of presences, of absences; client 2: unknown
    assert s.staleness.histogram.tolist() == [9, 1]  # client 0 in round 3; client 1 counts from round 3
    assert s.unseen == pytest.approx(2 / 12)
    # plain averaging: (½+½+0+⅓, 0+0+½+⅓, ½+½+½+⅓) / 4 = (4, 2.5, 5.5) / 12
    assert s.bias == pytest.approx((1.5 + 1.5) / 12 / 2)
    assert s.least_rounds == 2.0


def stretches(column: list[bool], of: bool) -> list[int]:
    return [len(run) for run in "".join("#" if x == of else " " for x in column).split()]


def counted(values: list[int], got: Counts) -> bool:
    if not values:
        return math.isnan(got.mean) and bool(np.isnan(got.quantiles).all()) and got.histogram.sum() == 0
    ranked, n = sorted(values), len(values)
    quantiles = [ranked[max(0, math.ceil(q * n) - 1)] for q in (0, 0.25, 0.5, 0.75, 1)]
    histogram = [values.count(k) for k in range(max(values) + 1)]
    same = (got.quantiles.tolist(), got.histogram.tolist()) == (quantiles, histogram)
    return same and math.isclose(got.mean, sum(values) / n)


@given(matrices)
def test_summary_client_by_client(matrix: Any) -> None:
    if not matrix.any():
        return
    s, columns = summary(matrix), matrix.T.tolist()
    stale, unseen = [], 0
    for i, column in enumerate(columns):
        pairs = list(pairwise(column))
        on, off = [b for a, b in pairs if a], [b for a, b in pairs if not a]
        λ = sum(on) / len(on) - sum(off) / len(off) if on and off else 0.0
        assert s.mixing[i] == pytest.approx(λ)
        assert s.marginals[i] == pytest.approx(sum(column) / len(column))
        since = None
        for here in column:
            since = 0 if here else None if since is None else since + 1
            unseen += since is None
            stale += [] if since is None else [since]
    assert counted([x for c in columns for x in stretches(c, True)], s.on)
    assert counted([x for c in columns for x in stretches(c, False)], s.off)
    assert counted(stale, s.staleness)
    assert s.unseen == pytest.approx(unseen / matrix.size)
    uniform = np.full(len(columns), 1 / len(columns))
    assert s.bias == pytest.approx(total_variation(uniform, plain_weights(matrix)))
    assert s.spread == spread(s.marginals)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda: spread([1.5]), "p must be one probability"),
        (lambda: spread([]), "p must be one probability"),
        (lambda: bound(Problem(1, 1, 1, 1, 0.1), [0.0, 1.0], 0.5, rounds=3), "every p must be above 0"),
        (lambda: bound(Problem(1, 1, 1, 1, 0.1), [1.0], 1.5, rounds=3), "beta must be in"),
        (lambda: limits([1.0], -1, smoothness=1, steps=1), "beta must be in"),
        (lambda: Problem(0, 1, 1, 1, 0.1), "smoothness"),
        (lambda: Problem(1, 1, np.inf, 1, 0.1), "diversity must be at least 0 and finite, got inf"),
        (lambda: least_rounds(0.1, 0), "target must be above 0"),
        (lambda: least_rounds(2.0, 0.1), r"p_min must be in \[0, 1\], got 2.0"),
        (lambda: lower_bound(0.1, -1), "rounds must be at least 0, got -1"),
        (lambda: bound(Problem(1, 1, 1, 1, 0.1), [1.0], 0.5, rounds=0), "rounds must be at least 1, got 0"),
        (lambda: bound(Problem(1, 1, 1, 1, 0.1), [1.0], 0.5, rounds=1, excess=-1.0), "excess must be at least 0"),
        (lambda: limits([1.0], 0.5, smoothness=0.0, steps=1), "smoothness must be above 0 and finite, got 0.0"),
        (lambda: total_variation([1.0], [0.5, 0.5]), "one finite number of at least 0 per client, got .1.0. and"),
        (lambda: chi_square([1.5, -0.5], [0.5, 0.5]), "must have one finite number of at least 0 per client"),
        (
            lambda: bias_bound([1], [1], condition=0.5, gap=1.0, gap_b=1.0),
            "condition must be at least 1 and finite, got 0.5",
        ),
        (
            lambda: bias_bound([1], [1], condition=1.0, gap=np.inf, gap_b=1.0),
            "gap must be at least 0 and finite, got inf",
        ),
        (lambda: bias_bound([1], [1], condition=np.inf, gap=1.0, gap_b=1.0), "condition must be .*, got inf"),
        (lambda: least_rounds(0.1, 0.1, excess=np.inf), "excess must be at least 0 and finite, got inf"),
        (lambda: Problem(1, np.inf, 1, 1, 0.1), "noise must be at least 0 and finite, got inf"),
        (lambda: bias_bound([3, 1], [2, 2], condition=1, gap=1, gap_b=1), r"sum to 1 .*, got sums of \[4.0, 4.0\]"),
        (lambda: chi_square([0.5, 0.5], [np.inf, 0.5]), "two distributions must have one finite number"),
        (lambda: bound(Problem(1, 1, 1, 1, 0.1), [1.0], 0.5, rounds=np.inf), "rounds must be a whole number"),  # type: ignore[arg-type]
        (lambda: lower_bound(0.1, np.array([1.0, np.nan])), "rounds must be at least 0, got array"),  # type: ignore[arg-type]
        (lambda: delta2([[1, 0]], 1, divergence=-1.0), "divergence must be at least 0, got -1.0"),
        (lambda: summary([[0.5, 1]]), "rounds × clients of 0 and 1"),
        (lambda: summary([1, 0]), "rounds × clients of 0 and 1"),
        (lambda: summary([[1, 0]], [1, 2, 3]), "weights must be 2 numbers"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(broken: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        broken()

"""Statistics over seeds, against numbers known from elsewhere."""

import math
import statistics as standard

import numpy as np
import pytest

from fedstale.lab.runs.statistics import (
    holm,
    p_value,
    paired_test,
    spread,
    student_tail,
    tenth,
    thinned,
    uncertainty,
)


def test_the_deviation_divides_by_n_minus_1() -> None:
    values = [0.2, 0.5, 0.9]
    found = spread(values)
    assert found.mean == pytest.approx(standard.mean(values))
    assert found.std == pytest.approx(standard.stdev(values))
    assert found.seeds == 3
    assert spread([0.7]) == (0.7, 0.0, 1)


def test_a_curve_has_a_mean_and_a_deviation_for_each_round() -> None:
    mean, std, seeds = spread([[1.0, 2.0], [3.0, 2.0]])
    assert mean.tolist() == [2.0, 2.0]
    assert std.tolist() == pytest.approx([math.sqrt(2), 0.0])
    assert seeds == 2
    assert spread([[1.0, 2.0]]).std.tolist() == [0.0, 0.0]


def test_the_paired_test_is_students() -> None:
    values = np.array([0.1, 0.3, 0.2])
    half = 2.920 * 0.1 / math.sqrt(3)  # t table, 95 % one-sided, 2 degrees of freedom
    assert uncertainty(values) == pytest.approx(half, rel=1e-4)
    assert paired_test(values) == 1
    assert paired_test(-values) == -1
    assert paired_test(values - 0.2 + half * 0.99) == 0
    assert paired_test(values - 0.2 + half * 1.01) == 1
    assert paired_test(-values, margin=0.2 - half * 0.99) == 0
    assert paired_test(-values, margin=0.2 + half * 1.01) == 1


@pytest.mark.parametrize(
    ("seeds", "quantile"), [(2, 6.3138), (11, 1.8125), (12, 1.7959), (31, 1.6973), (101, 1.6602)]
)
def test_the_interval_has_students_quantile_for_any_number_of_seeds(seeds: int, quantile: float) -> None:
    values = np.arange(float(seeds))
    error = standard.stdev(values) / math.sqrt(seeds)
    assert uncertainty(values) / error == pytest.approx(quantile, abs=6e-5)
    assert p_value(values - values.mean() + uncertainty(values)) == pytest.approx(0.05, rel=1e-9)


def test_one_seed_and_two_diverged_runs_prove_nothing() -> None:
    assert paired_test(np.array([5.0])) == 0
    assert paired_test(np.array([math.nan, 1.0])) == 0
    assert paired_test(np.array([math.inf, 1.0])) == 1
    assert paired_test(np.array([-math.inf, 1.0])) == -1


@pytest.mark.parametrize(("count", "most"), [(1, 500), (500, 500), (501, 500), (10_000, 500), (7, 3)])
def test_thinning_keeps_both_ends(count: int, most: int) -> None:
    kept = thinned(count, most)
    assert len(kept) == min(count, most)
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert kept == sorted(set(kept))


@pytest.mark.parametrize(
    ("t", "degrees", "tail"),
    [(0.0, 3, 0.5), (6.314, 1, 0.05), (2.920, 2, 0.05), (2.353, 3, 0.05), (1.833, 9, 0.05), (-1.812, 10, 0.95),
     (2.764, 10, 0.01), (12.706, 1, 0.025)],
)  # fmt: skip
def test_tails_of_students_distribution_are_those_of_the_tables(t, degrees, tail):
    assert student_tail(t, degrees) == pytest.approx(tail, rel=2e-3)


def test_a_p_value_is_that_of_a_one_sided_t_test():
    assert p_value(np.array([1.0, 2.0, 3.0])) == pytest.approx(student_tail(2 * 3**0.5, 2))
    assert p_value(np.array([1.0])) == p_value(np.array([np.inf, 1.0])) == 1.0
    assert p_value(100 + np.arange(78.0)) == 1e-15, "the closed form says 0 there"
    assert p_value(np.array([2.0, 2.0])) == 0.0
    assert p_value(np.array([-2.0, -2.0])) == 1.0


def test_holm_multiplies_the_smallest_most_and_keeps_the_order():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1.0, 1.0])
    assert len(holm([])) == 0


def test_a_tenth_of_the_clients_is_the_nearest_number_and_one_at_least() -> None:
    assert [tenth(n) for n in (1, 4, 14, 16, 20, 28)] == [1, 1, 1, 2, 2, 3]

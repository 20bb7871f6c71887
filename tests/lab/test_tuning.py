"""Rates are chosen by the same number of runs, whatever the scores are."""

import math

import pytest

from fedstale.lab.tuning import choice, next_rate, survivors


def test_the_list_goes_on_beyond_the_end_where_the_best_is() -> None:
    assert next_rate({0.1: 1.0, 1.0: 2.0}, 10.0) == pytest.approx(0.01)
    assert next_rate({0.1: 2.0, 1.0: 1.0}, 10.0) == pytest.approx(10.0)


def test_inside_the_list_the_next_rate_lies_towards_the_better_neighbour() -> None:
    assert next_rate({0.01: 3.0, 0.1: 1.0, 1.0: 2.0}, 10.0) == pytest.approx(math.sqrt(0.1))
    assert next_rate({0.01: 2.0, 0.1: 1.0, 1.0: 3.0}, 10.0) == pytest.approx(math.sqrt(0.001))


def test_where_every_run_diverged_a_smaller_rate_is_next() -> None:
    assert next_rate({0.1: math.inf, 1.0: math.inf}, 10.0) == pytest.approx(0.01)


def test_the_best_go_on_and_of_equals_the_smaller() -> None:
    assert survivors({0.1: 2.0, 1.0: 1.0, 10.0: 1.0, 0.01: math.inf}, 2) == [1.0, 10.0]


def test_the_choice_is_by_whole_runs_and_says_whether_it_is_at_an_end() -> None:
    short = {0.1: 3.0, 1.0: 1.0, 10.0: 2.0}
    assert choice(short, {1.0: 0.5, 10.0: 0.4})[:2] == (10.0, True)
    inside = choice(short, {1.0: 0.3, 10.0: 0.4})
    assert (inside.rate, inside.edge, inside.tried) == (1.0, False, 5)

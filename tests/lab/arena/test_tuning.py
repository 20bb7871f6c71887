"""Rates are chosen by the same number of runs, whatever the scores are."""

import math

import pytest

from fedstale.lab.arena import tuning
from fedstale.lab.arena.tuning import Setting, choice, next_setting, survivors, with_servers


def at(scores: dict[float, float], server: float = 1.0) -> dict[Setting, float]:
    return {Setting(rate, server): score for rate, score in scores.items()}


def test_the_list_goes_on_beyond_the_end_where_the_best_is() -> None:
    assert next_setting(at({0.1: 1.0, 1.0: 2.0}), 10.0) == pytest.approx((0.01, 1))
    assert next_setting(at({0.1: 2.0, 1.0: 1.0}), 10.0) == pytest.approx((10.0, 1))


def test_inside_the_list_the_next_rate_lies_towards_the_better_neighbour() -> None:
    assert next_setting(at({0.01: 3.0, 0.1: 1.0, 1.0: 2.0}), 10.0).rate == pytest.approx(math.sqrt(0.1))
    assert next_setting(at({0.01: 2.0, 0.1: 1.0, 1.0: 3.0}), 10.0).rate == pytest.approx(math.sqrt(0.001))


def test_the_next_rate_has_the_best_rate_of_the_server() -> None:
    scores = at({0.01: 3.0, 0.1: 2.0, 1.0: 4.0}) | at({0.1: 1.0, 1.0: 1.5}, 4.0)
    assert next_setting(scores, 10.0) == pytest.approx((0.01, 4.0)), "0.1 is the end of what the server had at 4"


def test_the_two_best_rates_are_tried_with_every_rate_of_the_server() -> None:
    scores = at({0.01: 3.0, 0.1: 1.0, 1.0: 2.0, 10.0: math.inf})
    assert with_servers(scores, [1.0, 2.0, 4.0]) == [(0.1, 2.0), (0.1, 4.0), (1.0, 2.0), (1.0, 4.0)]


def test_where_every_run_diverged_a_smaller_rate_is_next() -> None:
    assert next_setting(at({0.1: math.inf, 1.0: math.inf}), 10.0).rate == pytest.approx(0.01)


def test_the_best_go_on_and_of_equals_the_smaller() -> None:
    scores = at({0.1: 2.0, 1.0: 1.0, 10.0: 1.0, 0.01: math.inf})
    assert survivors(scores, 2) == [(1.0, 1.0), (10.0, 1.0)]


def test_what_is_not_a_number_is_last() -> None:
    assert survivors(at({0.1: math.nan, 1.0: 5.0, 10.0: math.nan}), 1) == [(1.0, 1.0)]


def test_the_choice_is_by_whole_runs_and_says_whether_it_is_at_an_end() -> None:
    short = at({0.1: 3.0, 1.0: 1.0, 10.0: 2.0})
    assert choice(short, at({1.0: 0.5, 10.0: 0.4}))[:2] == ((10.0, 1.0), True)
    inside = choice(short, at({1.0: 0.3, 10.0: 0.4}))
    assert (inside.setting.rate, inside.edge, inside.tried) == (1.0, False, 5)


@pytest.mark.parametrize(("rate", "edge"), [(0.1, True), (0.2, False), (0.4, True)])
def test_the_least_and_the_largest_rate_are_edges(rate: float, edge: bool) -> None:
    short = dict.fromkeys(map(tuning.Setting, (0.1, 0.2, 0.4)), 1.0)
    assert tuning.choice(short, {tuning.Setting(rate): 1.0}).edge is edge

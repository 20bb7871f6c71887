"""Claims on rows made by hand: each verdict can be told with pencil and paper."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.lab.papers import claims
from fedstale.lab.papers.rates import Row
from fedstale.lab.runs.store import RunFolder


def row(place: dict[str, Any], name: str, seed: int, values: dict[str, Any], settings: dict[str, Any]) -> Row:
    return Row(place, name, settings, {}, seed, 10, False, values, RunFolder(Path("nowhere")))


def rows(
    table: dict[tuple[Any, str], list[float]], along: str = "x", beta: dict[str, float] | None = None
) -> list[Row]:
    """(setting, algorithm) → accuracies over the seeds."""
    return [
        row({along: x}, name, k, {"accuracy_last10": value}, {"beta": beta[name]} if beta else {})
        for (x, name), values in table.items()
        for k, value in enumerate(values)
    ]


def verdict(found: list[Row], **claim: Any) -> claims.Verdict:
    return claims.judge([{"text": "it is so", **claim}], found)[0]


FAR, NEAR = [0.90, 0.91, 0.92], [0.50, 0.51, 0.52]


def test_above_needs_more_than_the_spread_of_the_paired_differences() -> None:
    found = rows(
        {(1, "a"): FAR, (1, "b"): NEAR, (2, "a"): NEAR, (2, "b"): FAR, (3, "a"): [0.5, 0.9, 0.1], (3, "b"): NEAR}
    )
    told = verdict(found, check="above", first="a", second="b")
    assert (told.holds, told.noise, told.fails) == (1, 1, 1)
    assert told.verdict == claims.FAILS  # one of three is more than a tenth
    only = verdict(found, check="above", first="a", second="b", where={"x": 1})
    assert only.verdict == claims.HOLDS
    assert "+0.4" in only.detail
    assert verdict(found, check="above", first="a", second="b", where={"x": [1, 1]}) == only
    assert verdict(found, check="above", first="a", second="b", where={"x": 9}).verdict == "not tested"


def test_differences_are_paired_by_seed() -> None:
    """The seeds differ by far more than the algorithms, which differ by the same in each."""
    found = rows({(1, "a"): [0.11, 0.51, 0.905], (1, "b"): [0.10, 0.50, 0.90]})
    assert verdict(found, check="above", first="a", second="b").verdict == claims.HOLDS


def test_a_lower_value_can_be_the_better_one() -> None:
    found = rows({(1, "a"): FAR, (1, "b"): NEAR})
    assert verdict(found, check="above", first="b", second="a", lower=True).verdict == claims.HOLDS


def test_one_seed_proves_nothing() -> None:
    found = rows({(1, "a"): [0.9], (1, "b"): [0.1]})
    assert verdict(found, check="above", first="a", second="b").verdict == claims.NOISE


def test_the_tolerance_is_students() -> None:
    """Three seeds, mean 0.02 and deviation 0.01: t = 3.46 is above 2.92; with deviation 0.02 it is not."""
    steady, shaky = np.array([0.01, 0.02, 0.03]), np.array([0.0, 0.02, 0.04])
    assert claims.outcome(steady).outcome == claims.HOLDS
    assert claims.outcome(shaky).outcome == claims.NOISE
    assert claims.outcome(-steady).outcome == claims.FAILS
    assert claims.outcome(-steady, margin=0.05).outcome == claims.HOLDS


def test_who_diverged_is_worse_than_anybody_who_did_not() -> None:
    found = rows({(1, "a"): FAR, (1, "b"): NEAR, (1, "c"): NEAR})
    found = [r._replace(diverged=r.algorithm != "a") for r in found]
    assert verdict(found, check="above", first="a", second="b").verdict == claims.HOLDS
    assert verdict(found, check="above", first="b", second="a").verdict == claims.FAILS
    assert verdict(found, check="above", first="b", second="c").verdict == claims.NOISE


def test_near_has_a_margin_and_then_the_spread() -> None:
    found = rows({(1, "a"): FAR, (1, "b"): [0.89, 0.90, 0.91], (1, "c"): [0.95, 0.75, 0.92]})
    assert verdict(found, check="near", first="a", second="b", margin=0.02).verdict == claims.HOLDS
    assert verdict(found, check="near", first="a", second="b", margin=0.005).verdict == claims.FAILS
    assert verdict(found, check="near", first="a", second="c", margin=0.005).verdict == claims.NOISE


def test_near_best_is_about_the_best_of_all() -> None:
    found = rows({(1, "a"): [0.89, 0.90, 0.91], (1, "b"): FAR, (1, "c"): NEAR})
    assert verdict(found, check="near_best", first="a", margin=0.02).verdict == claims.HOLDS
    assert verdict(found, check="near_best", first="c", margin=0.02).verdict == claims.FAILS
    assert verdict(found, check="near_best", first="b", margin=0.0).verdict == claims.HOLDS


def test_within_two_numbers() -> None:
    found = rows({(1, "a"): [0.59, 0.60, 0.61]})
    assert verdict(found, check="within", first="a", between=[0.5, 0.7]).verdict == claims.HOLDS
    assert verdict(found, check="within", first="a", between=[0.61, 0.7]).verdict == claims.NOISE
    assert verdict(found, check="within", first="a", between=[0.8, 0.9]).verdict == claims.FAILS


def test_a_claim_about_the_mean_of_the_cells() -> None:
    """0.4 and 0.8 are outside, their mean is not; seed by seed it is 0.59, 0.60 and 0.61."""
    found = rows({(1, "a"): [0.39, 0.40, 0.41], (2, "a"): [0.79, 0.80, 0.81]})
    assert verdict(found, check="within", first="a", between=[0.5, 0.7]).fails == 2
    told = verdict(found, check="within", first="a", between=[0.5, 0.7], mean=True)
    assert (told.verdict, told.holds, told.detail) == (claims.HOLDS, 1, "mean difference +0.6, from +0.6 to +0.6")
    assert verdict(found, check="within", first="a", between=[0.5, 0.59], mean=True).verdict == claims.NOISE
    assert verdict(found, check="within", first="b", between=[0, 1], mean=True).verdict == claims.UNTESTED


def test_a_trend_is_of_every_algorithm_between_neighbours() -> None:
    found = rows({(1, "a"): FAR, (3, "a"): [0.1, 0.11, 0.12], (2, "a"): NEAR, (1, "b"): NEAR, (2, "b"): FAR})
    told = verdict(found[:9], check="trend", along="x", up=False)
    assert (told.holds, told.fails) == (2, 0)  # 1 → 2 → 3 whatever the order of the rows
    lines = rows({(1, "a"): NEAR, (2, "a"): FAR, (1, "b"): FAR, (2, "b"): NEAR})
    assert verdict(lines, check="trend", along="x", up=True)[2:5] == (1, 0, 1)


def test_a_gap_can_grow() -> None:
    found = rows({(1, "a"): NEAR, (1, "b"): NEAR, (2, "a"): FAR, (2, "b"): NEAR})
    assert verdict(found, check="gap_trend", first="a", second="b", along="x", up=True).verdict == claims.HOLDS
    assert verdict(found, check="gap_trend", first="a", second="b", along="x", up=False).verdict == claims.FAILS


BETA = {"a": 0.0, "b": 0.5, "c": 1.0}


def test_the_best_setting_along_a_line() -> None:
    up = rows({(1, "a"): FAR, (1, "c"): NEAR, (2, "a"): NEAR, (2, "c"): FAR}, beta=BETA)
    assert verdict(up, check="best_trend", of="beta", along="x", up=True).verdict == claims.HOLDS
    assert verdict(up, check="best_trend", of="beta", along="x", up=False).verdict == claims.FAILS
    assert verdict(up, check="best_trend", of="beta", along="x", up=True, order=[2, 1]).verdict == claims.FAILS
    close = {
        (1, "a"): [0.5, 0.6, 0.7],
        (1, "c"): [0.8, 0.6, 0.5],
        (2, "a"): [0.7, 0.6, 0.7],
        (2, "c"): [0.8, 0.6, 0.5],
    }
    told = verdict(rows(close, beta=BETA), check="best_trend", of="beta", along="x", up=True)
    assert told.verdict == claims.NOISE


def test_the_share_of_cells_in_which_a_setting_is_best() -> None:
    cells = {(x, name): FAR if name == best else NEAR for x, best in enumerate("bbbac") for name in "abc"}
    found = rows(cells, beta=BETA)
    told = verdict(found, check="best_share", of="beta", between=[0.1, 0.9], share=0.5)
    assert (told.verdict, told.holds, told.fails) == (claims.HOLDS, 3, 2)
    assert verdict(found, check="best_share", of="beta", between=[0.1, 0.9], share=0.7).verdict == claims.FAILS


def test_a_best_setting_that_chance_does_not_tell_from_one_outside_is_within_noise() -> None:
    beta = {"a": 0.0, "b": 0.5}
    found = rows({(1, "a"): [0.5, 0.9, 0.1], (1, "b"): [0.9, 0.1, 0.6]}, beta=beta)
    told = verdict(found, check="best_share", of="beta", between=[0.1, 0.9])
    assert (told.verdict, told.detail) == (claims.NOISE, "going by the means alone, 1 of 1")


def test_the_loss_to_the_best_over_panels() -> None:
    found = rows({("exact", "a"): FAR, ("exact", "b"): FAR, ("learned", "a"): NEAR, ("learned", "b"): FAR}, "panel")
    told = verdict(found, check="loss_to_best", first="a", along="panel", order=["exact", "learned"])
    assert told.verdict == claims.HOLDS
    assert verdict(found, check="loss_to_best", first="b", along="panel", order=["exact", "learned"]).holds == 0


def test_mistakes_in_a_claim_are_told() -> None:
    found = rows({(1, "a"): FAR, (1, "b"): NEAR})
    with pytest.raises(BadInput, match="did you mean 'above'"):
        verdict(found, check="abov")
    with pytest.raises(BadInput, match="did you mean 'first'"):
        verdict(found, check="above", frist="a")
    with pytest.raises(BadInput, match="no 'accuracy_lst'"):
        verdict(found, check="above", first="a", second="b", metric="accuracy_lst")


def test_columns_are_compared_as_algorithms_are() -> None:
    found = [row({"x": 1}, "a", k, {"early": 3.0 + k, "late": 1.0 + k, "never": None}, {}) for k in (0, 1)]
    told = verdict(found, check="above", columns=["early", "late"], first="early", second="late")
    assert told.verdict == claims.HOLDS
    assert "+2" in told.detail
    far = verdict(found, check="within", columns=["early"], first="early", between=[3, 4], where={"of": "a"})
    assert far.verdict == claims.HOLDS
    nothing = verdict(found, check="within", columns=["never"], first="never", between=[0, 1])
    assert nothing.verdict == "not tested"
    some = [*found, row({"x": 1}, "b", 0, {"late": 1.0}, {})]
    assert verdict(some, check="within", columns=["early"], first="early", between=[3, 4]).holds == 1
    with pytest.raises(BadInput, match="the rows have no 'lte'"):
        verdict(found, check="above", columns=["early", "lte"], first="early", second="lte")


def test_where_takes_a_few_words() -> None:
    found = rows(
        {("s", "a"): FAR, ("s", "b"): NEAR, ("t", "a"): FAR, ("t", "b"): NEAR, ("u", "a"): NEAR, ("u", "b"): FAR}
    )
    assert verdict(found, check="above", first="a", second="b", where={"x": ["s", "t"]}).holds == 2
    assert verdict(found, check="above", first="a", second="b", where={"x": ["t", "u"]}).fails == 1


def test_the_cell_of_a_row_is_its_place_whatever_else_the_row_has() -> None:
    """Two algorithms with other settings and other tuned rates are compared in one cell."""
    found = [
        r._replace(settings={"beta": k}, tuned={"lr": k})
        for k, r in enumerate(rows({(1, "a"): FAR, (1, "b"): NEAR}))
    ]
    assert verdict(found, check="above", first="a", second="b").holds == 1
    assert [c.place for c in claims.cells({"text": ""}, found)] == [{"x": 1}]


def test_a_claim_about_an_algorithm_that_was_not_run_is_not_tested() -> None:
    found = rows({(1, "a"): FAR, (1, "b"): NEAR})
    for claim in ({"check": "above", "second": "c"}, {"check": "ahead", "rivals": ["b", "c"]}):
        assert verdict(found, first="a", **claim).verdict == "not tested"


@pytest.mark.parametrize(("asked", "told"), [(10, claims.HOLDS), (11, claims.UNTESTED)])
def test_a_claim_about_a_round_after_the_last_is_not_tested(asked: int, told: str) -> None:
    at = f"accuracy_at_{asked}"  # of runs of 10 rounds; the evaluated round that is next to it
    found = [r._replace(values={at: r.values["accuracy_last10"]}) for r in rows({(1, "a"): FAR, (1, "b"): NEAR})]
    for check in ("above", "mean_lead"):
        assert verdict(found, check=check, first="a", second="b", metric=at).verdict == told


@pytest.mark.parametrize(("fails", "told"), [(1, claims.HOLDS), (2, claims.FAILS)])
def test_a_statement_may_fail_in_a_tenth_of_the_cells(fails: int, told: str) -> None:
    found = {(x, name): values for x in range(10) for name, values in (("a", FAR), ("b", NEAR))}
    found |= {(x, name): values for x in range(fails) for name, values in (("a", NEAR), ("b", FAR))}
    assert verdict(rows(found), check="above", first="a", second="b").verdict == told


def test_ahead_is_of_the_best_rival_not_of_the_first() -> None:
    found = rows({(1, "a"): [0.7, 0.71, 0.72], (1, "weak"): NEAR, (1, "strong"): FAR})
    assert verdict(found, check="ahead", first="a", rivals=["weak", "strong"]).verdict == claims.FAILS
    assert verdict(found, check="ahead", first="strong", rivals=["weak", "a"]).verdict == claims.HOLDS
    assert verdict(found, check="not_worse", first="a", rivals=["weak", "strong"]).verdict == claims.FAILS


@pytest.mark.parametrize(
    ("cells", "holds", "told"),
    [(1, 1, claims.HOLDS), (2, 1, claims.NOISE), (2, 2, claims.HOLDS), (4, 2, claims.HOLDS), (5, 2, claims.NOISE)],
)
def test_half_of_the_cases_are_enough_where_none_fails_but_of_two_both(cells: int, holds: int, told: str) -> None:
    found = {(x, "b"): NEAR for x in range(cells)}
    found |= {(x, "a"): FAR if x < holds else [0.5, 0.9, 0.1] for x in range(cells)}
    told_of = verdict(rows(found), check="above", first="a", second="b")
    assert (told_of.holds, told_of.noise, told_of.fails, told_of.verdict) == (holds, cells - holds, 0, told)


def test_who_diverged_is_worse_also_where_good_values_are_negative() -> None:
    found = rows({(1, "a"): FAR, (1, "b"): NEAR})
    found = [r._replace(diverged=r.algorithm == "b") for r in found]
    assert verdict(found, check="above", first="a", second="b", lower=True).verdict == claims.HOLDS

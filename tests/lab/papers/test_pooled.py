"""Tests over all cells: what they find where no cell alone does, what they do not find, and Holm's correction."""

import math

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.lab.papers import claims, pooled
from tests.lab.papers.test_claims import row

SEEDS = 6
BETAS = {"b0": 0.0, "b2": 0.25, "b5": 0.5, "b8": 0.75, "b10": 1.0}


def made(value, places, names=("a", "b"), settings=lambda name: {}):
    """Rows with value(place, name, seed) as accuracy."""
    return [
        row(place, name, seed, {"accuracy_last10": value(place, name, seed)}, settings(name))
        for place in places
        for name in names
        for seed in range(SEEDS)
    ]


PLACES = [{"x": x, "p_min": p} for x in (0.0, 0.5, 1.0) for p in (0.5, 0.1, 0.02)]


def judged(rows, **claim):
    return claims.judge([{"text": "it is so", **claim}], rows)[0]


def test_a_small_lead_in_every_cell_is_found_together_and_in_no_cell():
    rng = np.random.default_rng(1)
    chance = {(repr(p), n, s): rng.normal() for p in PLACES for n in "ab" for s in range(SEEDS)}
    rows = made(lambda p, n, s: (0.6 if n == "a" else 0.0) + chance[repr(p), n, s], PLACES)
    assert judged(rows, check="above", first="a", second="b").verdict == claims.NOISE
    told = judged(rows, check="mean_lead", first="a", second="b")
    assert told.verdict == claims.HOLDS
    assert told.p is not None
    assert told.p < 0.05
    assert judged(rows, check="mean_lead", first="b", second="a").verdict == claims.FAILS
    assert judged(rows, check="mean_lead", first="a", second="b", where={"x": 9}).verdict == "not tested"


def test_a_margin_is_how_far_the_first_may_be_behind():
    rows = made(lambda p, n, s: (-0.2 if n == "a" else 0.0) + 0.001 * s * (n == "a"), PLACES[:2])
    for margin, verdict in ((0.0, claims.FAILS), (0.15, claims.FAILS), (0.25, claims.HOLDS)):
        assert judged(rows, check="mean_lead", first="a", second="b", margin=margin).verdict == verdict


def test_without_a_difference_nothing_is_found():
    wrong = 0
    for k in range(200):
        rng = np.random.default_rng(k)
        rows = made(lambda p, n, s: rng.normal(), PLACES[:3])  # noqa: B023
        wrong += judged(rows, check="mean_lead", first="a", second="b").verdict == claims.HOLDS
    assert 2 <= wrong <= 20  # 5 % of 200


def test_the_slope_of_a_lead_is_measured_over_ln_ratio():
    rows = made(
        lambda p, n, s: (n == "a") * 2 * math.log((1 + p["p_min"]) / 2 / p["p_min"]) + 0.01 * s * s * (n == "a"),
        PLACES,
    )
    claim = {"check": "lead_slope", "first": "a", "second": "b", "along": "p_min", "scale": "ln_ratio"}
    assert "+2" in judged(rows, **claim).detail
    assert judged(rows, **claim, up=False).verdict == claims.FAILS


def test_without_a_second_the_slope_is_that_of_the_first_itself():
    rows = made(lambda p, n, s: (n == "a") * 3 * p["x"] + p["x"] * 0.01 * s + 7 * s, PLACES)
    told = judged(rows, check="lead_slope", first="a", along="x")
    assert (told.verdict, "+3.025" in told.detail) == (claims.HOLDS, True)
    assert judged(rows, check="lead_slope", first="a", along="x", up=False).verdict == claims.FAILS


@pytest.mark.parametrize("check", ["above", "near", "gap_trend", "mean_lead"])
def test_a_lead_over_nobody_is_refused(check):
    with pytest.raises(BadInput, match=f"check '{check}' needs a `second` to compare with `first`, got none"):
        judged(made(lambda p, n, s: 0.5 + 0.01 * s, PLACES), check=check, first="a", along="x", margin=0.1)


def test_the_best_beta_is_the_vertex_of_a_parabola_within_the_range():
    def value(place, name, seed):
        best = 0.2 + 0.5 * place["x"] + 0.01 * seed
        return -((BETAS[name] - best) ** 2)

    rows = made(value, PLACES, BETAS, lambda name: {"beta": BETAS[name]})
    found = claims.cells({"text": "", "of": "beta"}, rows)
    slopes = pooled.best_slope(found, {"along": "x"})
    np.testing.assert_allclose(slopes, 0.5, atol=1e-9)
    told = judged(rows, check="best_slope", of="beta", along="x")
    assert told.verdict == claims.HOLDS


@pytest.mark.parametrize(
    ("curve", "due"), [(lambda b: b, 1.0), (lambda b: -b, 0.0), (lambda b: (b - 0.4) ** 2, 1.0)]
)
def test_a_best_beta_outside_is_the_better_end(curve, due):
    rows = made(lambda p, n, s: curve(BETAS[n]), PLACES[:1], BETAS, lambda name: {"beta": BETAS[name]})
    (cell,) = claims.cells({"text": "", "of": "beta"}, rows)
    np.testing.assert_allclose(pooled._vertices(cell), due)


def test_the_tests_of_a_figure_share_their_chance_of_error():
    rng = np.random.default_rng(3)
    rows = made(lambda p, n, s: (0.5 if n == "a" else 0.0) + 0.5 * rng.normal(), PLACES[:2])
    one = {"text": "1", "check": "mean_lead", "first": "a", "second": "b"}
    alone = claims.judge([one], rows)[0].p
    among = claims.judge([one, *({**one, "text": str(k), "first": "b", "second": "a"} for k in range(4))], rows)[
        0
    ].p
    assert among == pytest.approx(min(1.0, 5 * alone))


def test_a_claim_without_cells_takes_no_share_of_the_chance_of_error():
    rng = np.random.default_rng(3)
    rows = made(lambda p, n, s: (0.5 if n == "a" else 0.0) + 0.5 * rng.normal(), PLACES[:2])
    one = {"text": "1", "check": "mean_lead", "first": "a", "second": "b"}
    told = claims.judge([{**one, "where": {"x": 9}}, one], rows)
    assert told[0].verdict == claims.UNTESTED
    assert told[1].p == claims.judge([one], rows)[0].p


def test_a_slope_along_words_takes_them_in_the_order_of_the_claim():
    at = {"exact": 1.0, "guessed": 3.0, "other": 99.0}
    rows = made(lambda p, n, s: (at[p["panel"]] + 0.01 * s) * (n == "a"), [{"panel": name} for name in at])
    claim = {"check": "lead_slope", "first": "a", "second": "b", "along": "panel"}
    assert "+2 " in judged(rows, **claim, order=["exact", "guessed"]).detail
    assert "-2 " in judged(rows, **claim, order=["guessed", "exact"]).detail


def test_a_run_that_diverged_leaves_nothing_to_test():
    rows = made(lambda p, n, s: 1.0 + p["x"] * (n == "a"), PLACES)
    gone = [row._replace(diverged=True) if k == 3 else row for k, row in enumerate(rows)]
    for check in ("mean_lead", "lead_slope"):
        told = judged(gone, check=check, first="a", second="b", along="x")
        assert (told.verdict, told.p) == (claims.NOISE, 1.0)


def test_a_slope_over_one_cell_is_not_tested():
    rows = made(lambda p, n, s: (1.0 + 0.5 * s) * (n == "a"), PLACES[:1])
    claim = {"text": "", "first": "a", "second": "b", "along": "x"}
    slope, lead = claims.judge([claim | {"check": "lead_slope"}, claim | {"check": "mean_lead"}], rows)
    assert (slope.verdict, slope.p) == (claims.UNTESTED, None)
    assert lead.p == judged(rows, check="mean_lead", first="a", second="b").p, "it counts as no test of the figure"


def test_an_unknown_scale_is_refused():
    rows = made(lambda p, n, s: 1.0, PLACES[:1])
    with pytest.raises(BadInput, match="scale"):
        judged(rows, check="lead_slope", first="a", second="b", along="x", scale="cubic")

"""Standings from made-up scores, recomputed in the plainest way."""

import math

import numpy as np
import pytest

from fedstale.lab.arena.records import Cell, Contest, Curve, Entry
from fedstale.lab.arena.scores import _ranks, bootstrap, missing, pairs, reached, standings, subsets
from fedstale.lab.arena.table import COSTS, markdown, results, rows
from fedstale.lab.runs.statistics import student_tail


def entry(objective: list[float], accuracy: float = 0.5, curve: Curve | None = None) -> Entry:
    scores = {"objective": np.array(objective), "accuracy": np.full(len(objective), accuracy)}
    lost, curves = sum(not math.isfinite(v) for v in objective), {"objective": curve} if curve else {}
    return Entry(0.1, 1.0, False, 8, scores, curves, dict.fromkeys(COSTS, 1.0), lost)


def cell(name: str, *objectives: list[float], belief: str = "known", start: float = 11.0) -> Cell:
    entries = {f"r{k}": entry(values) for k, values in enumerate(objectives)}
    return Cell(f"{name}, coins, p {belief}", name, "coins", belief, 4, 3, 10, "", start, entries)


FULL = {"a": entry([1.0, 1.0, 1.0]), "b": entry([2.0, 2.0, 2.0])}
A = cell("a", [1.0, 1.1, 1.2], [2.0, 2.2, 2.3], [1.5, 1.6, 1.4])
B = cell("b", [4.0, 4.1, 4.2], [3.0, 3.1, 2.9], [9.0, math.inf, 9.0], belief="estimated")


def test_a_score_is_the_share_of_the_best_rules_progress_that_is_missing() -> None:
    table = missing([A], list(A.entries))
    assert table[1, 0] == pytest.approx((np.array([2.0, 2.2, 2.3]) - 1.1) / (11 - 1.1))
    assert table[0, 0].mean() == pytest.approx(0)
    assert missing([B], list(B.entries))[2, 0, 1] == 1, "a run that diverged made no progress"


@pytest.mark.parametrize("nothing", [math.nan, math.inf, 1e9])
def test_a_run_that_learned_nothing_is_last_whatever_its_number(nothing: float) -> None:
    bad = cell("a", [nothing] * 3, [2.0, 2.2, 2.3], [10.0, 10.5, 11.0])
    assert missing([bad], ["r0", "r1", "r2"])[0, 0].tolist() == [1.0] * 3
    assert [s.rule for s in standings([bad], FULL)] == ["r1", "r2", "r0"]
    found = {s.rule: s.rank.mean for s in standings([bad, A], FULL)}
    assert found["r0"] == pytest.approx((2 + 3 + 3 + 1 + 1 + 1) / 6, abs=0.2)
    assert _ranks(np.array([2.0, math.nan, 1.0])).tolist() == [2, 3, 1]


def test_the_best_rule_misses_nothing_although_a_seed_of_it_is_above_the_start() -> None:
    wild = cell("a", [1.0, 1.0, 900.0], [3.0, 3.0, 800.0], [9.0, 9.0, 10.0])
    means = missing([wild], list(wild.entries)).mean(axis=(1, 2))
    assert means.min() == pytest.approx(0)
    assert [s.rule for s in standings([wild], FULL)] == ["r0", "r1", "r2"]


def test_where_every_rule_diverged_all_miss_everything() -> None:
    lost = cell("a", [math.nan] * 3, [math.inf] * 3, [math.nan] * 3)
    assert (missing([lost], list(lost.entries)) == 1).all()
    assert [s.missing.mean for s in standings([lost], FULL)] == [1, 1, 1]


def test_rules_are_ordered_by_missing_progress_and_the_worst_cell_is_named() -> None:
    found = {s.rule: s for s in standings([A, B], FULL)}
    assert list(found) == ["r1", "r0", "r2"]
    assert found["r0"].rank.mean == pytest.approx((1 + 2) / 2)
    assert found["r2"].rank.mean == pytest.approx((2 + 3) / 2)
    assert found["r0"].worst_cell == "b, coins, p estimated"
    assert found["r0"].worst_missing == pytest.approx(1.1 / 8)
    assert found["r0"].missing.mean == pytest.approx(1.1 / 8 / 2)
    assert [found[r].near for r in ("r0", "r1", "r2")] == [0.5, 0.5, 0.0], (
        "within 2 points of the best: one cell each"
    )
    assert found["r2"].diverged == 1
    assert found["r0"].behind_full == pytest.approx((0.1 / 10 + 2.1 / 9) / 2)


def test_accuracy_is_in_points_behind_the_best_rule_of_the_cell() -> None:
    good, bad = entry([1.0] * 3, 0.9), entry([0.5] * 3, 0.6)
    here = A._replace(entries={"good": good, "bad": bad})
    there = here._replace(entries={"good": bad, "bad": entry([1.0] * 3, 0.5)})
    found = {s.rule: s.behind for s in standings([here, there], FULL)}
    assert found["good"] == (0, 0, 0)
    assert found["bad"].mean == pytest.approx((0.3 + 0.1) / 2)
    without = A._replace(
        entries={name: e._replace(scores={"objective": e.scores["objective"]}) for name, e in A.entries.items()}
    )
    assert math.isnan(standings([without], FULL)[0].behind.mean), "a task without an accuracy has none"


def test_the_rounds_to_where_fedavg_ends() -> None:
    def down(*values: float) -> Entry:
        return entry([values[-1]] * 3, curve=Curve([1, 5, 10], list(values)))

    here = A._replace(entries={"fedavg": down(9, 5, 4), "fast": down(4, 3, 2), "slow": down(9, 8, 7)})
    there = here._replace(entries={"fedavg": down(9, 5, 4), "fast": down(9, 4, 3), "slow": down(9, 8, 7)})
    assert reached("fast", [here, there]) == [0.1, 0.5]
    assert reached("fedavg", [here]) == [1.0]
    found = {s.rule: (s.reached, s.reaches) for s in standings([here, there], FULL)}
    assert found["fast"] == (pytest.approx(0.3), 2)
    assert math.isnan(found["slow"][0])
    assert found["slow"][1] == 0
    lost = here._replace(entries=here.entries | {"fast": here.entries["fast"]._replace(diverged=1)})
    assert reached("fast", [lost]) == [math.inf], "with some of its seeds"
    assert reached("r0", [A]) == [math.inf], "nobody is called fedavg"


def test_equal_objectives_share_their_rank() -> None:
    found = standings([cell("a", [1.0, 1.0], [1.0, 1.0], [2.0, 2.0])], FULL | {"a": entry([1.0, 1.0])})
    assert [s.rank.mean for s in found] == [1.5, 1.5, 3.0]


def test_the_interval_is_wide_where_cells_disagree_and_narrow_where_nothing_varies() -> None:
    steady, split = np.full((1, 8, 4), 2.0), np.zeros((1, 8, 4))
    split[0, ::2] = 4.0
    assert bootstrap(steady)[0] == (2.0, 2.0, 2.0)
    mean, low, high = bootstrap(split)[0]
    deviation = math.sqrt(4.0 / 8)  # of the mean of eight cells that are 0 or 4
    assert mean == 2.0
    assert low == pytest.approx(2 - 1.64 * deviation, abs=0.3)
    assert high == pytest.approx(2 + 1.64 * deviation, abs=0.3)


def test_pairs_are_tested_over_the_seeds_with_a_correction_for_all_of_them() -> None:
    far = cell("a", [1.0, 1.1, 1.0, 1.1, 1.0], [1.1, 1.0, 1.1, 1.0, 1.05], [3.0, 3.1, 3.2, 3.1, 3.0])
    found = {(p.first, p.second): p for p in pairs([far])}
    assert found["r0", "r2"].p < 0.01
    assert found["r0", "r1"].p > 0.05
    raw = {}
    for a, b in found:
        v = far.entries[a].scores["objective"] - far.entries[b].scores["objective"]
        raw[a, b] = 2 * student_tail(abs(v.mean()) / (v.std(ddof=1) / math.sqrt(5)), 4)  # from both sides
    least = min(raw, key=lambda pair: raw[pair])
    assert found[least].p == pytest.approx(3 * raw[least]), "the least chance counts once for each of three pairs"
    assert found["r0", "r2"].more == pytest.approx((1.04 - 3.08) / (11 - 1.04))
    leading = {s.rule: s.leading for s in standings([far], {"a": entry([1.0] * 5)})}
    assert leading == {"r0": True, "r1": True, "r2": False}


def test_subsets_are_those_of_a_task_a_participation_and_a_belief() -> None:
    found = {key: [c.task for c in cells] for key, cells in subsets([A, B]).items()}
    assert found["||"] == ["a", "b"]
    assert found["a||"] == ["a"]
    assert found["||estimated"] == ["b"]
    assert "a||estimated" not in found


def test_the_first_is_bold_and_those_that_chance_may_explain_are_marked() -> None:
    far = cell("a", [1.0, 1.1, 1.0, 1.1, 1.0], [1.1, 1.0, 1.1, 1.0, 1.05], [3.0, 3.1, 3.2, 3.1, 3.0])
    full = {"a": entry([1.0] * 5)}
    names = [row[0] for row in rows(standings([far], full))]
    assert names == ["r0", "r1 ≈", "r2"]
    lines = [line.split(" | ")[0] for line in markdown([far], full).splitlines()]
    assert lines[-3:] == ["| **r0**", "| r1 ≈", "| r2"]


def test_costs_that_are_not_known_are_dashes() -> None:
    costs = dict.fromkeys(COSTS, 0.0) | dict(zip(COSTS, (1234.5, math.nan), strict=False))
    (row,) = rows(standings([A._replace(entries={"r0": entry([1.0] * 3)._replace(costs=costs)})], FULL))
    assert row[-1 - len(COSTS) : -1] == ["1230", "–"] + ["0"] * (len(COSTS) - 2)


def test_results_have_a_row_for_every_run() -> None:
    table = results(Contest({"seeds": [1, 2, 3]}, [A], FULL))
    assert len(table) == 3 * 3 + 2 * 3
    assert table[1] == {
        "cell": "a, coins, p known", "hash": "", "rule": "r0", "rate": "0.1", "server": 1.0, "seed": 2,
        "accuracy": "0.5", "objective": "1.1",
    }  # fmt: skip
    assert {row["rule"] for row in table[-6:]} == {"full"}


def test_the_interval_is_wide_where_seeds_disagree_too() -> None:
    split = np.zeros((1, 8, 4))
    split[0, :, ::2] = 4.0  # every cell says the same
    mean, low, high = bootstrap(split)[0]
    assert (mean, low, high) == (2.0, pytest.approx(2 - 1.64, abs=0.7), pytest.approx(2 + 1.64, abs=0.7))

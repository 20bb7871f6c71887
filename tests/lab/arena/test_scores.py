"""Standings from made-up scores, recomputed in the plainest way."""

import math

import numpy as np
import pytest

from fedstale.lab.arena.records import Cell, Contest, Entry
from fedstale.lab.arena.scores import MOST, bootstrap, logs, pairs, standings, subsets
from fedstale.lab.arena.table import results
from fedstale.lab.runs.statistics import student_tail


def entry(objective: list[float], accuracy: float = 0.5) -> Entry:
    scores = {"objective": np.array(objective), "accuracy": np.full(len(objective), accuracy)}
    return Entry(0.1, False, 8, scores, {}, {"up": 1.0}, sum(not math.isfinite(v) for v in objective))


def cell(name: str, *objectives: list[float], belief: str = "known") -> Cell:
    entries = {f"r{k}": entry(values) for k, values in enumerate(objectives)}
    return Cell(f"{name}, coins, p {belief}", name, "coins", belief, 4, 3, 10, "", entries)


FULL = {"a": entry([1.0, 1.0, 1.0]), "b": entry([2.0, 2.0, 2.0])}
A = cell("a", [1.0, 1.1, 1.2], [2.0, 2.2, 2.3], [1.5, 1.6, 1.4])
B = cell("b", [4.0, 4.1, 4.2], [3.0, 3.1, 2.9], [9.0, math.inf, 9.0], belief="estimated")


def test_a_score_is_the_log_of_the_objective_over_the_best_rule_of_the_cell() -> None:
    table = logs([A], list(A.entries))
    best = np.log([1.0, 1.1, 1.2]).mean()
    assert table[1, 0] == pytest.approx(np.log([2.0, 2.2, 2.3]) - best)
    assert logs([B], list(B.entries))[2, 0, 1] == MOST, "a run that diverged counts as a factor of 100"


def test_rules_are_ordered_by_mean_rank_and_the_worst_cell_is_named() -> None:
    found = {s.rule: s for s in standings([A, B], FULL)}
    assert list(found) == ["r0", "r1", "r2"]
    assert found["r0"].rank.mean == pytest.approx((1 + 2) / 2)
    assert found["r2"].rank.mean == pytest.approx((2 + 3) / 2)
    assert found["r0"].worst_cell == "b, coins, p estimated"
    expected = math.exp(np.log([4.0, 4.1, 4.2]).mean() - np.log([3.0, 3.1, 2.9]).mean()) - 1
    assert found["r0"].worst_above == pytest.approx(expected)
    assert [found[r].near for r in ("r0", "r1", "r2")] == [0.5, 0.5, 0.0], "within 2 % of the best: one cell each"
    assert found["r2"].diverged == 1
    full = math.exp(np.mean([np.log([1.0, 1.1, 1.2]).mean(), np.log(np.array([4.0, 4.1, 4.2]) / 2).mean()])) - 1
    assert found["r0"].above_full == pytest.approx(full)


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
        v = np.log(far.entries[a].scores["objective"]) - np.log(far.entries[b].scores["objective"])
        raw[a, b] = 2 * student_tail(abs(v.mean()) / (v.std(ddof=1) / math.sqrt(5)), 4)  # from both sides
    least = min(raw, key=lambda pair: raw[pair])
    assert found[least].p == pytest.approx(3 * raw[least]), "the least chance counts once for each of three pairs"
    assert found["r0", "r2"].above == pytest.approx(-2 / 3, abs=0.02)
    leading = {s.rule: s.leading for s in standings([far], {"a": entry([1.0] * 5)})}
    assert leading == {"r0": True, "r1": True, "r2": False}


def test_subsets_are_those_of_a_task_a_participation_and_a_belief() -> None:
    found = {key: [c.task for c in cells] for key, cells in subsets([A, B]).items()}
    assert found["||"] == ["a", "b"]
    assert found["a||"] == ["a"]
    assert found["||estimated"] == ["b"]
    assert "a||estimated" not in found


def test_a_rule_that_is_better_on_average_than_the_first_by_rank_leads_too() -> None:
    close = [cell(name, [1.0, 1.01, 1.02, 1.0], [1.1, 1.12, 1.11, 1.1]) for name in ("a", "b")]
    far = cell("c", [9.0, 9.1, 9.0, 9.2], [1.0, 1.01, 1.0, 1.0])
    found = standings([*close, far], {name: entry([1.0] * 4) for name in "abc"})
    assert [(s.rule, s.leading) for s in found] == [("r0", True), ("r1", True)]


def test_results_have_a_row_for_every_run() -> None:
    rows = results(Contest({"seeds": [1, 2, 3]}, [A], FULL))
    assert len(rows) == 3 * 3 + 2 * 3
    assert rows[1] == {
        "cell": "a, coins, p known", "hash": "", "rule": "r0", "rate": "0.1", "seed": 2, "accuracy": "0.5",
        "objective": "1.1",
    }  # fmt: skip
    assert {row["rule"] for row in rows[-6:]} == {"full"}


def test_the_interval_is_wide_where_seeds_disagree_too() -> None:
    split = np.zeros((1, 8, 4))
    split[0, :, ::2] = 4.0  # every cell says the same
    mean, low, high = bootstrap(split)[0]
    assert (mean, low, high) == (2.0, pytest.approx(2 - 1.64, abs=0.7), pytest.approx(2 + 1.64, abs=0.7))

"""The page of sweeps: what was tried, what is best, and a picture that fits the number of settings."""

from pathlib import Path
from typing import Any

import pytest

from fedstale.lab import plan as sweep
from fedstale.lab.execute import execute
from fedstale.lab.runs import named, query
from fedstale.lab.runs.store import open_store
from fedstale.view.page.markup import table
from fedstale.view.page.plots import Table
from fedstale.view.page.sweeps import sweeps

RAW: dict[str, Any] = {
    "name": "try",
    "rounds": 3,
    "data": {"dataset": "quadratic", "clients": 4, "dimension": 2},
    "local": {"lr": 0.1},
    "participation": {"kind": "two-groups", "p_min": 0.5},
    "algorithms": ["fedavg", "fedstale"],
}


def swept(folder: Path, **more: Any) -> list[query.Setting]:
    for cell in sweep.planned(sweep.cells(RAW | more), open_store(folder)):
        for _ in execute(cell.experiment, cell.runs, command="fedstale run try.toml"):
            pass
    return query.settings(named.find(folder).runs)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"tune": {"lr": [0.1, 0.2]}}, "scatter"),
        ({"tune": {"lr": [0.1, 0.2]}, "grid": {"participation.p_min": [0.5, 0.9]}}, "heatmap"),
        ({"grid": {"local.lr": [0.1, 0.2], "participation.p_min": [0.5, 0.9]}}, "heatmap"),
        ({"tune": {"lr": [0.1, 0.2], "beta": [0.1, 0.9]}, "grid": {"participation.p_min": [0.5, 0.9]}}, "scatter"),
    ],
)
def test_the_best_settings_are_named_and_all_are_drawn(tmp_path: Path, more: dict[str, Any], kind: str) -> None:
    found = swept(tmp_path / "runs", **more)
    ((name, best, plot),) = sweeps(found)
    assert name == "try"
    assert {trace["type"] for trace in plot.data} == {kind}
    places = len(more.get("grid", {}).get("participation.p_min", [0]))
    assert sorted(row[0] for row in best.rows) == ["fedavg"] * places + ["fedstale"] * places
    assert sum(int(row[-1]) for row in best.rows) == len(plot.table.rows)
    assert all(row[:-1] in plot.table.rows for row in best.rows)
    quoted = [trace for trace in plot.data if "&#x27;" in str(trace.get("text"))]
    assert not quoted, "settings in words, not as Python prints them"


def test_the_best_settings_are_in_the_order_of_the_grid_and_the_best_algorithm_is_first(tmp_path: Path) -> None:
    grid = {"participation.p_min": [0.9, 0.05, 0.5]}
    found = swept(tmp_path / "runs", tune={"lr": [0.1, 0.2]}, grid=grid, algorithms=["fedstale", "mifa", "fedavg"])
    ((_, best, _),) = sweeps(found)
    place, value = best.head.index("participation.p_min"), len(best.head) - 2
    assert [float(row[place]) for row in best.rows] == [0.05] * 3 + [0.5] * 3 + [0.9] * 3
    for k in range(0, 9, 3):
        values = [float(row[value].split()[0]) for row in best.rows[k : k + 3]]  # distances: the least is the best
        assert values == sorted(values)


def test_a_rule_around_another_is_named_in_words(tmp_path: Path) -> None:
    wrapped = {"kind": "clipped", "strategy": {"kind": "fedavg"}, "bound": 1.0}
    ((_, best, _),) = sweeps(swept(tmp_path / "runs", algorithms=[wrapped], tune={"lr": [0.1, 0.2]}))
    assert [row[0] for row in best.rows] == ["clipped strategy=fedavg, bound=1.0"]


def test_runs_of_one_setting_are_no_sweep(tmp_path: Path) -> None:
    assert sweeps(swept(tmp_path / "runs")) == []


def test_a_fork_or_a_run_that_went_on_is_no_setting_that_was_tried(tmp_path: Path) -> None:
    (found,) = swept(tmp_path / "runs")
    fork = found._replace(config=found.config | {"rounds": 6, "start": {"run": "fedavg-s1-0", "round": 3}})
    assert sweeps([found, fork]) == []
    assert sweeps([found, fork._replace(config=found.config | {"rounds": 6})]) == []
    assert sweeps([found, fork._replace(config=found.config | {"server": "adam"})])


def test_a_column_is_aligned_as_a_whole() -> None:
    rows = [["lr", "0.1", "1"], ["kind", "sgd", "–"]]
    assert table(Table(["setting", "value", "n"], rows), "caption").count("<td class=text>") == 2

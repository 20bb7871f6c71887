"""A contest: the same terms for every rule, a record that says so, and nothing computed twice."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.lab.arena import contest, records
from fedstale.lab.arena.table import boards
from fedstale.lab.build import make_task
from fedstale.lab.runs import store
from fedstale.lab.schema import check
from fedstale.view.page.arena import page
from tests.lab.arena.small_suite import RAW, finished, hold


def test_every_rule_is_tuned_by_the_same_number_of_runs_on_seeds_of_its_own(tmp_path: Path) -> None:
    record = finished(tmp_path)
    for cell in record["cells"]:
        assert {rule["tuning_runs"] for rule in cell["rules"].values()} == {2 + 2 + 1 + 2}
        for rule in cell["rules"].values():
            assert {store.RunFolder(tmp_path / "runs" / name).config()["seed"] for name in rule["runs"]} == {1, 2}
            assert [rule["rate"], rule["server"]] in [setting for *setting, _ in rule["whole"]]
            assert [s for *s, _ in rule["short"]] == sorted(s for *s, _ in rule["short"])
            factors = [server for _, server, _ in rule["short"]]
            assert factors.count(1) >= 2
            assert factors.count(3) >= 2, "the two best rates are tried with longer steps of the server"
    seeds = [folder.config()["seed"] for folder in store.runs(tmp_path / "runs")]
    assert seeds.count(11) == (1 + 2 * 3) * (2 + 2 + 1 + 2), "three rules in two cells, and the reference"
    assert json.loads((tmp_path / "arena.json").read_text()) == record
    times = (tmp_path / "server-ms.csv").read_text().splitlines()
    assert len(times) == 1 + 1 + 2 * 3
    assert all(float(line.rpartition(",")[2]) > 0 for line in times[1:])


def test_the_start_and_the_servers_factor_are_those_of_the_runs(tmp_path: Path) -> None:
    record = finished(tmp_path)
    for cell in record["cells"]:
        e = check(
            {
                "rounds": 1,
                "seeds": [1, 2],
                "algorithms": ["fedavg"],
                "participation": {"kind": "bernoulli", "p": 1.0},
            }
            | {"data": RAW["task"]["bowl"]["data"], "local": {"lr": 1e-12, "steps": 1}, "name": "start"}
        )
        task = make_task(e.data, e.model.model_dump())
        starts = [float(task.evaluate(task.init(seed))["objective"]) for seed in (1, 2)]
        assert cell["start"] == pytest.approx(np.mean(starts))
        for rule in cell["rules"].values():
            config = store.RunFolder(tmp_path / "runs" / rule["runs"][0]).config()
            assert (config["local"]["lr"], config["server"]["lr"]) == (rule["rate"], rule["server"])


def test_the_hash_is_of_the_data_and_of_who_is_there(tmp_path: Path) -> None:
    record = finished(tmp_path / "a")
    hashes = [cell["hash"] for cell in record["cells"]]
    assert len({*hashes}) == 3
    other = hold(tmp_path / "b", rules=["fedavg"], seeds=[1, 3])
    assert [a == b["hash"] for a, b in zip(hashes, other["cells"], strict=True)] == [True, False, True], (
        "other seeds have other coins, whatever the rules"
    )


def test_a_rule_that_is_added_costs_its_own_runs_alone(tmp_path: Path) -> None:
    before = finished(tmp_path)
    stored = {p: p.stat().st_mtime_ns for p in tmp_path.glob("runs/*/result.json")}
    said: list[str] = []
    after = hold(tmp_path, said, rules=["mifa"])
    assert said[0] == "the first rates: 18 runs in 3 cells, 4 to compute"
    assert all(p.stat().st_mtime_ns == time for p, time in stored.items())
    added = {p.parent.name.split("-")[0] for p in tmp_path.glob("runs/*/result.json")} - {
        p.parent.name.split("-")[0] for p in stored
    }
    assert added == {"mifa"}
    assert [*after["cells"][1]["rules"]] == ["fedavg", "unbiased", "stale", "mifa"]
    for old, new in zip(before["cells"], after["cells"], strict=True):
        assert {label: new["rules"][label] for label in old["rules"]} == old["rules"]


def test_another_suite_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    finished(tmp_path)
    with pytest.raises(BadInput, match="other settings: take another folder"):
        hold(tmp_path, seeds=[1, 2, 3])
    with pytest.raises(BadInput, match="holds no contest"):
        contest.entered(tmp_path / "elsewhere")


def test_cells_with_a_clock_are_added_to_a_contest_and_have_rules_and_a_board_of_their_own(tmp_path: Path) -> None:
    before = finished(tmp_path)
    clock = {"hours": 0.02, "pace": {"kind": "buffer", "size": 1, "concurrency": 2}}
    more = {
        "task": {
            **RAW["task"],
            "timed": {**RAW["task"]["bowl"], "rounds": 500, "reference": False, "clock": clock},
        },
        "participation": {**RAW["participation"], "always": {"kind": "bernoulli", "p": 1.0}},
        "cells": [*RAW["cells"], ["timed", "always", "estimated"]],
        "clocked": [{"kind": "fedavg", "pace": {"kind": "rounds", "ask": 2}}, "ace"],
    }
    after = hold(tmp_path, **more)
    assert after["cells"][: len(before["cells"])] == before["cells"]
    held = records.read(tmp_path)
    assert [c.name for c in held.timed] == ["timed, always, p estimated"]
    assert [*held.timed[0].entries] == ["fedavg", "ace"]
    lines = {
        label: [store.RunFolder(tmp_path / "runs" / name).metrics() for name in rule["runs"]]
        for label, rule in after["cells"][-1]["rules"].items()
    }
    assert all(66 < run[-1]["seconds"] <= 72 for label in lines for run in lines[label]), "the same hours for all"
    assert all(len(a) > len(b) for a, b in zip(lines["ace"], lines["fedavg"], strict=True))
    assert held.timed[0].entries["ace"].curves["objective"].rounds[-1] == pytest.approx(0.02)
    assert "With a clock" in page(held)
    assert "hours to FedAvg's end" in boards(held, tmp_path)

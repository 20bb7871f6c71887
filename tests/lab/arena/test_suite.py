"""A suite from its table: cells, rates and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from fedstale.cli.arena import SUITES
from fedstale.core import BadInput
from fedstale.lab.arena import suite
from fedstale.lab.arena.suite import Place
from fedstale.lab.arena.tuning import Setting
from fedstale.lab.build import packaged
from tests.lab.arena.small_suite import RAW, TOML, raw


def test_the_reference_of_every_task_comes_first_and_has_every_client_in_every_round() -> None:
    small = suite.checked(raw())
    first, *cells = suite.places(small)
    assert first == Place("bowl", "full", "")
    assert [*suite.rules_of(small, first)] == ["full"]
    assert suite.table(small, first, [1], [], 1.0)["participation"] == {"kind": "bernoulli", "p": 1.0}
    assert cells == [Place("bowl", "halves", "known"), Place("bowl", "turns", "estimated")]


def test_all_cells_are_every_combination() -> None:
    assert len(suite.places(suite.checked(raw(cells="all")))) == 1 + 1 * 2 * 2


def test_the_estimator_is_for_cells_whose_p_is_estimated() -> None:
    small = suite.checked(raw(estimator="beta-bernoulli"))
    told = [suite.table(small, place, [1], [], 1.0)["estimator"] for place in suite.places(small)[1:]]
    assert told == ["known", "beta-bernoulli"]


def test_rates_of_a_sum_over_clients_are_divided_by_their_number() -> None:
    small = suite.checked(raw(sums=["stale"]))
    place = suite.places(small)[1]
    assert suite.first_settings(small, place, "fedavg") == [(0.02, 1), (0.1, 1)]
    assert suite.first_settings(small, place, "stale") == [(0.005, 1), (0.025, 1)]


def test_the_server_of_a_rule_takes_longer_steps() -> None:
    own = {"kind": "fedavg", "server": {"kind": "adam", "lr": 0.1}, "label": "fedadam"}
    ball = {"kind": "fedavg", "server": {"kind": "projection", "radius": 9.0}, "label": "ball"}
    small = suite.checked(raw(rules=["fedavg", own, ball]))
    settings = {label: [Setting(0.1), Setting(0.1, 3.0)] for label in small.rules_in("bowl")}
    found = suite.planned(small, suite.places(small)[1], [1], settings, 1.0, Path()).experiment
    entries = {a["label"]: a.get("server", "sgd") for a in found.algorithms if isinstance(a, dict)}
    assert [*entries] == [f"{r} lr=0.1{more}" for r in small.rules_in("bowl") for more in ("", " × 3")]
    assert entries["fedavg lr=0.1"] == "sgd"
    assert entries["fedavg lr=0.1 × 3"]["lr"] == 3.0
    assert entries["fedadam lr=0.1 × 3"]["lr"] == pytest.approx(0.3)
    assert entries["ball lr=0.1 × 3"]["base"]["lr"] == 3.0


def test_a_task_may_name_its_participations_and_have_no_reference() -> None:
    tasks = raw()["task"]
    tasks["many"] = tasks["bowl"] | {"with": ["turns"], "reference": False}
    found = suite.places(suite.checked(raw(task=tasks, cells="all")))
    assert [(p.task, p.participation) for p in found] == [
        ("bowl", "full"), *[("bowl", "halves")] * 2, *[("many", "turns")] * 2,
    ]  # fmt: skip


def test_a_recording_has_as_many_clients_as_the_task() -> None:
    small = suite.checked(raw())
    grid = {"kind": "grid", "grid": "phones.npz"}
    here = small.model_copy(update={"participation": {"halves": grid, "turns": grid | {"clients": 7}}})
    told = [suite.table(here, place, [1], [], 1.0)["participation"] for place in suite.places(here)[1:]]
    assert [spec["clients"] for spec in told] == [4, 7]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tuning": {"seeds": [2]}}, r"other seeds than those of the evaluation, got \[2\] in both"),
        ({"rules": ["fedavg", "fedavg"]}, "label of its own"),
        ({"rules": [{"kind": "fedavg", "label": "full"}]}, "other than 'full'"),
        ({"rules": ["fedavgg"]}, "fedavg"),
        ({"rules": [{"kind": "mifa", "steps": 50}]}, "rule mifa must not have steps: all rules train alike"),
        ({"rules": [{"kind": "mifa", "lr": 1.0, "channel": "lossless"}]}, "must not have lr and channel"),
        ({"sums": ["focus"]}, "sums 'focus' is unknown"),
        (
            {"task": {"bowl": RAW["task"]["bowl"] | {"local": {"momentum": 0.9}}}, "rules": ["focus"]},
            "needs plain SGD",
        ),
        ({"cells": [["bowl", "thirds", "known"]]}, "participation of a cell 'thirds' is unknown"),
        ({"cells": [["bowl", "halves", "guessed"]]}, "belief of a cell 'guessed' is unknown"),
        ({"cells": [["bowl", "halves"]]}, "cells"),
        ({"task": {"bowl": {"rounds": 3}}}, "task.bowl.data is missing"),
        ({"seed": [1]}, "seeds"),
        ({"task": {"bowl": {**RAW["task"]["bowl"], "clock": {}}}}, "task.bowl.clock needs hours"),
        ({"tuning": {"seeds": [11], "server": [2, 4]}}, "tuning.server must begin with 1"),
    ],
)
def test_a_mistake_is_found_before_anything_is_trained(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        suite.checked(raw(**changes))


def test_what_is_a_rules_own_stays_its_own() -> None:
    rules = [
        {"kind": "fedavg", "prox": 0.1, "label": "fedprox"},
        {"kind": "fedavg", "server": "adam", "label": "fedadam"},
    ]
    assert suite.checked(raw(rules=rules)).rules_in("bowl").keys() == {"fedprox", "fedadam"}


def test_a_size_changes_keys_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(TOML)
    sizes = {size: suite.read(path, size) for size in ("smoke", "laptop")}
    assert {size: s.task["bowl"]["rounds"] for size, s in sizes.items()} == {"smoke": 20, "laptop": 400}
    with pytest.raises(BadInput, match="the size of suite small 'tiny' is unknown"):
        suite.read(path, "tiny")


@pytest.mark.parametrize("name", packaged(SUITES))
@pytest.mark.parametrize("size", ["smoke", "laptop", "clock", "full"])
def test_every_packaged_suite_can_be_read_at_every_size(name: str, size: str) -> None:
    found = suite.read(packaged(SUITES)[name], size)
    assert found.size == size

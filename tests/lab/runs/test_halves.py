"""The clients that come often beside those that come rarely."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedstale.lab.runs.store import RunFolder
from fedstale.lab.runs.verdict import Halves, halves

OFTEN = [
    {"round": t, "accuracy": 0.9, "loss": 0.1, "iou": 0.5, "heard": [1, 3] if t % 5 else [0, 1, 2, 3]}
    for t in range(1, 11)
]


def run(folder: Path, scores: list[float | None] | None) -> RunFolder:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"data": {"clients": 4}}))
    if scores is not None:
        (folder / "clients.json").write_text(json.dumps({"accuracy": scores, "weight": [0.25] * 4}))
    return RunFolder(folder)


def test_halves_are_by_how_often_a_client_came_and_means_over_runs(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", [0.1, 0.8, 0.3, 1.0]), run(tmp_path / "b", [0.4, 0.9, None, 0.9])
    assert halves([(first, OFTEN)]) == Halves(often=pytest.approx(0.9), rare=pytest.approx(0.2))
    assert halves([(first, OFTEN), (second, OFTEN)]) == Halves(often=pytest.approx(0.9), rare=pytest.approx(0.3))


def test_clients_are_compared_by_the_main_metric_and_without_any_by_their_loss(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", None)
    own = {"iou": [0.1, 0.5, 0.2, 0.7], "accuracy": [0.9] * 4, "loss": [3.0, 1.0, 2.0, 1.0], "weight": [0.25] * 4}
    for missing, main, by in ([], "iou", "iou"), ([], None, "accuracy"), (["iou", "accuracy"], None, "loss"):
        (folder.path / "config.json").write_text(json.dumps({"data": {"clients": 4}, "main": main}))
        (folder.path / "clients.json").write_text(json.dumps({k: v for k, v in own.items() if k not in missing}))
        found = halves([(folder, OFTEN)])
        assert found is not None
        assert found.by.name == by
    assert found[:2] == (1.0, 2.5)


@pytest.mark.parametrize(
    ("scores", "lines"),
    [
        (None, OFTEN),
        ([0.5] * 3, OFTEN),
        ([None, 0.5, None, 0.5], OFTEN),
        ([0.5] * 4, [{"round": 1, "heard": [0, 1, 2, 3]}]),  # all come equally often
        ([0.5] * 4, [{"round": 1, "participants": 4}]),
    ],
)
def test_where_there_is_nothing_to_tell_there_are_none(tmp_path: Path, scores: Any, lines: Any) -> None:
    assert halves([(run(tmp_path / "a", scores), lines)]) is None


def test_a_damaged_table_is_not_drawn(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", [0.5] * 4)
    (folder.path / "clients.json").write_text("{")
    assert halves([(folder, OFTEN)]) is None
    assert halves([]) is None

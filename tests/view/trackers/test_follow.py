"""Runs are told to trackers line by line and once, and a tracker that fails disturbs no run."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstale.core import BadInput
from fedstale.lab.runs.store import MARKER, RunFolder
from fedstale.view.trackers import follow
from fedstale.view.trackers.follow import Follower, Tracker, following, log_runs, package, values


class Book:
    """A tracker that writes down what it is told."""

    runs: dict[str, list[Any]]

    def __init__(self, name: str, config: Mapping[str, Any], home: Path) -> None:
        self.lines = Book.runs.setdefault(name, [config])

    def log(self, t: int, values: Mapping[str, float]) -> None:
        self.lines.append((t, values["accuracy"]))

    def close(self) -> None:
        self.lines.append("closed")


class Broken(Book):
    def log(self, t: int, values: Mapping[str, float]) -> None:
        raise RuntimeError("no disk")


@pytest.fixture(autouse=True)
def book(monkeypatch: pytest.MonkeyPatch) -> None:
    Book.runs = {}
    monkeypatch.setattr(follow, "package", lambda tracker: None)
    monkeypatch.setitem(follow.WRITERS, Tracker.tensorboard, Book)
    monkeypatch.setitem(follow.WRITERS, Tracker.mlflow, Broken)


def write(run: RunFolder, *rounds: int) -> None:
    run.path.mkdir(parents=True, exist_ok=True)
    (run.path / "config.json").write_text('{"label": "x"}')
    with (run.path / "metrics.jsonl").open("a") as file:
        for t in rounds:
            file.write(json.dumps({"round": t, "accuracy": t / 10}) + "\n")


def test_each_line_is_told_once_and_a_finished_run_is_closed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    found = Follower([run, RunFolder(tmp_path / "later")], Tracker.tensorboard, tmp_path)
    found.update()
    write(run, 1, 2)
    found.update()
    found.update()
    assert Book.runs == {"run": [{"label": "x"}, (1, 0.1), (2, 0.2)]}
    write(run, 3)
    (run.path / "result.json").write_text('{"rounds": 3}')
    found.update()
    found.close()
    assert Book.runs["run"][-2:] == [(3, 0.3), "closed"]


def test_the_thread_tells_while_the_block_lasts_and_the_rest_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "SECONDS", 0.01)
    run = RunFolder(tmp_path / "run")
    with following([run], [Tracker.tensorboard], tmp_path):
        write(run, 1)
        end = time.monotonic() + 600
        while not Book.runs and time.monotonic() < end:
            time.sleep(0.01)
        assert Book.runs
        monkeypatch.setattr(follow, "SECONDS", 1000.0)
        write(run, 2)
    assert Book.runs["run"][1:] == [(1, 0.1), (2, 0.2), "closed"]


def test_a_tracker_that_fails_is_left_out_with_a_warning_and_the_others_go_on(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with (
        pytest.warns(UserWarning, match="mlflow is left out: RuntimeError: no disk"),
        following([run], [Tracker.mlflow, Tracker.tensorboard], tmp_path),
    ):
        write(run, 1)
    assert Book.runs["run"][-2:] == [(1, 0.1), "closed"]


def test_numbers_are_told_and_lists_are_not() -> None:
    line = {
        "round": 3,
        "accuracy": 0.5,
        "train_loss": None,
        "loss": math.inf,
        "staleness": [1.0, 2.0, 9.0],
        "heard": [1],
    }
    told = {"accuracy": 0.5, "staleness_median": 1.0, "staleness_90": 2.0, "staleness_oldest": 9.0}
    assert values(line) == told


def test_stored_runs_are_exported_and_nonsense_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text('{"format": 1}')
    for k in range(3):
        write(RunFolder(tmp_path / f"run-{k}"), 1, 2)
    assert log_runs(tmp_path, "tensorboard", tmp_path / "logs") == 3
    assert [len(lines) for lines in Book.runs.values()] == [4, 4, 4]
    with pytest.raises(BadInput, match="the tracker must be one of tensorboard, wandb, mlflow, got 'paper'"):
        log_runs(tmp_path, "paper")


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(follow.MODULES, Tracker.wandb, "no_such_package")
    with pytest.raises(BadInput, match=r"--log wandb needs no_such_package: pip install 'fedstale\[wandb\]'"):
        package(Tracker.wandb)


def test_a_federation_is_logged_under_the_name_of_its_folder(tmp_path: Path) -> None:
    state = RunFolder(tmp_path / "hospitals" / "state")
    with following([state], [Tracker.tensorboard], tmp_path):
        write(state, 1, 2)
        (state.path / "config.json").unlink()
    assert Book.runs == {"hospitals": [{}, (1, 0.1), (2, 0.2), "closed"]}

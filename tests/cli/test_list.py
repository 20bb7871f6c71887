"""`fedstale list`: names and stored runs."""

import json
from pathlib import Path

import pytest

import fedstale as fs
from fedstale.view.terminal.console import print_table
from tests.cli.commands import fedstale


@pytest.mark.parametrize(
    "what",
    [
        "recipes",
        "strategies",
        "participation",
        "estimators",
        "channels",
        "datasets",
        "models",
        "partitions",
        "experiments",
    ],
)
def test_lists_have_a_line_for_everything(what: str) -> None:
    rows = json.loads(fedstale("list", what, "--format", "json").stdout)[what]
    assert rows
    assert all(row["what"] for row in rows)


def test_a_folder_of_runs_is_listed(tmp_path: Path) -> None:
    task = fs.Quadratic.random(n=3, d=2)
    parts = fs.Run(fs.Serial(task, fs.Local(lr=0.1)), fs.FedAvg(), fs.Bernoulli(1.0), rounds=1, seed=1)
    folder = fs.record(parts, tmp_path / "theirs", label="mean")
    (row,) = json.loads(fedstale("list", str(tmp_path / "theirs"), "--format", "json").stdout)["runs"]
    assert folder.path.name in row.values()


def test_unknown_list_and_run(tmp_path: Path) -> None:
    assert "did you mean 'strategies'?" in fedstale("list", "stratgies").stderr
    assert fedstale("show", "nothing", "--out", tmp_path).returncode == 2


def test_names_of_runs_are_whole_to_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    name = "fedstale-s1-23a65add88"
    print_table([{"name": name} | {f"column{k}": "some words" for k in range(12)}])
    assert name in capsys.readouterr().out

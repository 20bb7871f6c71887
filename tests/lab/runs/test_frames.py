"""Stored runs as tables and pictures for notebooks."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.lab.runs.frames import client_rows, metric_rows, run_rows


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> fs.Comparison:
    task, folder = fs.Quadratic.random(n=4, d=3), tmp_path_factory.mktemp("frames") / "runs"
    settings: dict[str, Any] = {"rounds": 4, "seeds": (1, 2), "local": fs.Local(lr=0.1), "out": folder}
    return fs.compare(task, ["fedavg", fs.strategies.MIFA()], fs.Bernoulli(0.5), **settings)


def test_a_row_says_what_a_run_is_and_what_came_out(found: fs.Comparison) -> None:
    rows = run_rows(found.picture.parent)
    assert [(row["label"], row["seed"]) for row in rows] == [("fedavg", 1), ("fedavg", 2), ("mifa", 1), ("mifa", 2)]
    results = {run.path.name: run.result() for run in found.runs}
    for row in rows:
        assert row["local.lr"] == 0.1
        assert row["participation.p"] == 0.5
        assert row["objective.final"] == results[row["run"]]["objective"]["final"]
        assert row["rounds"] == 4
        assert row["result.rounds"] == 4


def test_the_long_form_has_every_number_of_every_round(found: fs.Comparison) -> None:
    rows = metric_rows(found.picture.parent)
    run = found.runs[0]
    values = [row["value"] for row in rows if row["run"] == run.path.name and row["metric"] == "objective"]
    assert values == [line["objective"] for line in run.metrics()]
    assert {row["round"] for row in rows} == {1, 2, 3, 4}
    assert {row["metric"] for row in rows} >= {"participants", "train_loss", "distance"}


def test_a_row_of_a_client_has_its_name_and_how_often_it_was_heard(found: fs.Comparison) -> None:
    rows = client_rows(found.picture.parent)
    assert len(rows) == 4 * 4
    first = rows[:4]
    assert [row["name"] for row in first] == [f"client {k}" for k in range(4)]
    heard = [line["heard"] for line in found.runs[0].metrics()]
    assert [row["heard"] for row in first] == [sum(k in of for of in heard) / 4 for k in range(4)]
    assert sum(row["weight"] for row in first) == pytest.approx(1)


def test_data_frames_need_pandas_and_say_so(found: fs.Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fs.BadInput, match="need pandas: pip install pandas"):
        fs.runs(found.picture.parent)
    monkeypatch.setitem(sys.modules, "pandas", type(sys)("pandas"))
    sys.modules["pandas"].DataFrame = list  # type: ignore[attr-defined]
    assert fs.runs(str(found.picture.parent)) == run_rows(found.picture.parent)
    assert fs.metrics(found.picture.parent) == metric_rows(found.picture.parent)
    importlib.import_module("fedstale.lab.runs.query")  # the room has the name of the function
    assert callable(fs.runs)


def test_they_are_data_frames_of_pandas(found: fs.Comparison) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is an extra")
    runs, numbers = fs.runs(found.picture.parent), fs.metrics(found.picture.parent)
    assert isinstance(runs, pandas.DataFrame)
    assert runs.groupby("label")["objective.final"].count().to_dict() == {"fedavg": 2, "mifa": 2}
    table = numbers[numbers.metric == "distance"].pivot_table(index="round", columns="label", values="value")
    due = np.mean([[line["distance"] for line in run.metrics()] for run in found.runs[::2]], axis=0)
    np.testing.assert_allclose(table["fedavg"].to_numpy(), due)


def test_a_plot_is_a_figure_of_pyplot_and_keeps_the_backend(found: fs.Comparison) -> None:
    code = "import matplotlib; matplotlib.use('svg'); import sys, fedstale as fs\n"
    code += "made = fs.plot(sys.argv[1]); from matplotlib import pyplot\n"
    code += "print(matplotlib.get_backend(), pyplot.fignum_exists(made.number))\n"
    code += "print([line.get_label() for line in made.axes[0].lines], made.axes[0].lines[0].get_ydata().tolist())"
    source = {**os.environ, "PYTHONPATH": str(Path(fs.__file__).parents[1])}
    place = str(found.picture.parent)
    done = subprocess.run(
        [sys.executable, "-c", code, place], env=source, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("svg True\n['fedavg', 'mifa']")
    mean = np.mean([[line["distance"] for line in run.metrics()] for run in found.runs[::2]], axis=0)
    np.testing.assert_allclose(eval(done.stdout.split("] ")[1]), mean)
    with pytest.raises(fs.BadInput, match="setting must be from 0 to 0, got 3"):
        fs.plot(found, setting=3)


def test_a_folder_whose_name_is_too_long_is_refused() -> None:
    with pytest.raises(fs.BadInput, match="the name of the folder is too long, got 'xxx"):
        fs.runs("x" * 5000)

"""`FedStale(record=FOLDER)` keeps a run as `fedstale run` does, for all commands that read runs."""

import warnings

import numpy as np
import pytest
from flwr.app import MetricRecord

from fedstale.cli.app import command as command_line
from fedstale.core import BadInput
from fedstale.flower import FedStale
from fedstale.lab.runs import query
from fedstale.lab.runs.store import RunFolder
from tests.flower.direct import TASK, Direct, N, quadratic, start, table

THERE = table(10)


def evaluate(t, arrays):
    return MetricRecord({"loss": float(TASK.evaluate(arrays["w"].numpy())["objective"])})


def played(folder, rounds=10, state=None, **settings):
    strategy = FedStale("auto", fraction_evaluate=0.0, record=folder, **settings)
    if state is not None:
        strategy.load_state_dict(state)
    arrays = start() if state is None else strategy.arrays
    strategy.start(Direct(N, quadratic(THERE)), arrays, num_rounds=rounds, evaluate_fn=evaluate)
    return strategy


def test_a_run_is_kept_with_its_rounds_clients_and_result(tmp_path):
    strategy = played(tmp_path / "runs")
    run = RunFolder(tmp_path / "runs" / "auto-1")
    assert run.finished
    assert not run.damage
    lines = run.metrics()
    assert [line["round"] for line in lines] == [*range(1, 11)]
    places = [strategy._identities.names[1000 + k] for k in range(N)]
    names = run.clients()["name"]
    for line, there in zip(lines, THERE, strict=True):
        assert {names[k] for k in line["heard"]} == {places[k] for k in np.flatnonzero(there)}
        assert line["participants"] == there.sum()
        assert line["loss"] > 0
    assert np.array_equal(run.params(), strategy.arrays["w"].numpy())
    assert run.result()["loss"]["final"] == lines[-1]["loss"]
    assert query.recorded_presence(run).sum() == THERE.sum()
    assert query.load(run).seed == 1
    played(tmp_path / "runs", rounds=2)
    assert RunFolder(tmp_path / "runs" / "auto-2").finished


@pytest.mark.parametrize(
    "command", [["report", "runs"], ["show", "auto-1", "--out", "runs"], ["inspect", "runs/auto-1"]]
)
def test_the_commands_take_it(tmp_path, monkeypatch, capsys, command):
    if command[0] == "report":
        pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    played("runs")
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        command_line()(command, standalone_mode=False)
    assert not capsys.readouterr().err


def test_a_resumed_training_goes_on_with_its_record(tmp_path):
    whole = played(tmp_path / "whole")
    first = played(tmp_path / "half", rounds=6)
    state = first.state_dict()
    again = played(tmp_path / "half", rounds=4, state=state)
    assert np.array_equal(again.arrays["w"].numpy(), whole.arrays["w"].numpy())
    runs = [RunFolder(tmp_path / name / "auto-1") for name in ("whole", "half")]
    free = [[line | {"seconds": 0} for line in run.metrics()] for run in runs]
    assert free[0] == free[1]
    assert runs[1].result()["fingerprint"] == runs[0].result()["fingerprint"]
    with pytest.raises(BadInput, match="has not the rounds of auto that this state has"):
        played(tmp_path / "other", rounds=1, state=state)


def broken(t, arrays):
    return MetricRecord({"loss": 1 / (3 - t)})


def test_a_training_that_fails_leaves_an_unfinished_run(tmp_path):
    strategy = FedStale("auto", fraction_evaluate=0.0, record=tmp_path / "runs")
    with pytest.raises(ZeroDivisionError):
        strategy.start(Direct(N, quadratic(THERE)), start(), num_rounds=5, evaluate_fn=broken)
    run = RunFolder(tmp_path / "runs" / "auto-1")
    assert not run.finished
    assert not run.busy
    assert len(run.metrics()) == 3

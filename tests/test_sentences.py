"""Mistakes of the first hour, each told in a sentence that says what to do."""

import errno
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedstale as fs
from fedstale.cli import app
from fedstale.lab import schema
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.runs.store import RunFolder, write

X = torch.zeros(6, 2)


def task(y: Any, model: Any = None, **settings: Any) -> fs.Supervised:
    return fs.Supervised(model or (lambda: nn.Linear(2, 3)), [(X, y)], **settings)


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (
            ["yes", "no"] * 3,
            r"train: targets must be class numbers .* such as 'yes': number them, .*\.index",
        ),
        (torch.tensor([1, 2, 3] * 2), r"from 0 to 2, .* they begin with 1: subtract 1"),
        (torch.tensor([0, 5] * 3), r"from 0 to 2, .* the model needs 6 outputs for them"),
        (torch.zeros(6, 1, dtype=torch.long), r"take away the last dimension: y\.squeeze\(-1\)"),
    ],
)
def test_labels_that_are_no_class_numbers(y: Any, sentence: str) -> None:
    with pytest.raises(fs.BadInput, match=sentence):
        task(y)


def test_a_softmax_before_cross_entropy_is_warned_of() -> None:
    y = torch.zeros(6, dtype=torch.long)
    with pytest.warns(UserWarning, match="outputs sum to 1, as after a softmax"):
        task(y, lambda: nn.Sequential(nn.Linear(2, 3), nn.Softmax(-1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task(y, lambda: nn.Sequential(nn.Linear(2, 3), nn.LogSoftmax(-1)))  # harmless


def test_a_loss_that_is_nan_at_once_is_not_blamed_on_the_learning_rate() -> None:
    def own_loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (outputs.sum(1) * 0).log() * 0

    clients = [(X, torch.zeros(6, dtype=torch.long))] * 2
    engine = fs.Serial(fs.Supervised(lambda: nn.Linear(2, 3), clients, loss=own_loss), fs.Local(lr=0.1))
    with pytest.raises(fs.Diverged, match=r"not finite before the first step: look for nan in the data, log\(0\)"):
        list(fs.simulate(engine, fs.FedAvg(), fs.Bernoulli(1.0), rounds=1, seed=1))


RAW: dict[str, Any] = {
    "name": "try", "rounds": 2, "algorithms": ["fedavg"], "data": {"dataset": "quadratic", "clients": 4},
    "local": {"lr": 0.05}, "participation": {"kind": "bernoulli", "p": 0.5},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rounds": 1e3}, "rounds must be a whole number: write 1000, got 1000.0"),
        ({"seeds": 3}, r"seeds must be a list, such as \[1, 2, 3\], got 3"),
        (
            {"algorithms": ["fedavgm"]},
            "fedavgm is no rule of its own here: it is fedavg with server = ",
        ),
        ({"algorithms": ["FedProx"]}, "FedProx is no rule of its own here: it is fedavg with prox"),
    ],
)
def test_settings_that_are_nearly_right(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(fs.BadInput, match=sentence):
        plan(schema.check(RAW | change), tmp_path)


def test_clients_that_never_come_are_told_of(tmp_path: Path) -> None:
    said: list[str] = []
    experiment = schema.check(RAW | {"participation": {"kind": "bernoulli", "p": [0.5, 0.0, 1.0, 0.0]}})
    list(execute(experiment, plan(experiment, tmp_path), say=said.append))
    assert any("2 of 4 clients never come (p = 0)" in line and line.endswith("1, 3") for line in said)


def test_a_run_that_another_process_computes_names_the_command_that_follows_it(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "one")
    with (
        run.locked(),
        pytest.raises(fs.BadInput, match=r"another process; `fedstale watch .*runs` shows how far"),
        run.locked(),
    ):
        pass


def test_a_full_disk_names_the_file_and_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(file: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def command() -> Any:
        return lambda **_: write(tmp_path / "params.npy", full)

    said: list[str] = []
    monkeypatch.setattr(app, "command", command)
    monkeypatch.setattr(app, "say", said.append)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 4
    assert said[0].startswith(f"fedstale: No space left on device: {tmp_path / 'params.npy'}; free some space")
    assert "--resume" in said[0]


def test_a_wrong_setting_of_a_part_is_one_traceback() -> None:
    with pytest.raises(fs.BadInput) as found:
        fs.TwoGroups(p_min="often")  # type: ignore[arg-type]
    assert found.value.__context__ is None
    assert "During handling" not in "".join(traceback.format_exception(found.value))


def test_a_script_without_a_guard_is_told_in_a_line(tmp_path: Path) -> None:
    script = tmp_path / "flat.py"
    script.write_text(
        "import fedstale as fs\n"
        "from fedstale.engines.processes.pool import Pool\n"
        "task = fs.Quadratic.random(4, 3)\n"
        "engine = Pool(task, fs.Local(lr=0.1), workers=1)\n"
        "*_, s = fs.simulate(engine, fs.FedAvg(), fs.Bernoulli(1.0), rounds=1, seed=1)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600)
    assert "start scripts under `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]
    assert "freeze_support" not in done.stderr
    assert len(done.stderr.splitlines()) < 60

"""The model of a stored run as named arrays and as files."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedstale as fs
from fedstale.cli.export import export as command
from fedstale.lab.runs.models import arrays, export


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def task() -> fs.Supervised:
    rng = np.random.default_rng(0)
    return fs.Supervised(Net, [(rng.standard_normal((8, 3)).astype(np.float32), np.arange(8) % 2)] * 3)


@pytest.fixture(scope="module")
def run(task: fs.Supervised, tmp_path_factory: pytest.TempPathFactory) -> fs.lab.RunFolder:
    settings: dict[str, Any] = {"rounds": 3, "local": fs.Local(lr=0.1), "engine": "serial"}
    out = tmp_path_factory.mktemp("models") / "runs"
    return fs.compare(task, ["fedavg"], fs.Bernoulli(0.9), out=out, **settings).runs[0]


def test_a_torch_file_is_the_state_of_the_model(task: fs.Supervised, run: fs.lab.RunFolder, tmp_path: Path) -> None:
    export(run, tmp_path / "deep" / "model.pt")
    net = Net()
    net.load_state_dict(torch.load(tmp_path / "deep" / "model.pt", weights_only=True))
    due = task.model(run.params(), run.buffers()).state_dict()
    assert int(net.norm.num_batches_tracked) > 0  # type: ignore[arg-type]
    for name, values in net.state_dict().items():
        assert torch.equal(values, due[name]), name


def test_safetensors_have_the_same_arrays(run: fs.lab.RunFolder, tmp_path: Path) -> None:
    reader = pytest.importorskip("safetensors.numpy", reason="safetensors is an extra")
    export(run, tmp_path / "model.safetensors")
    found, due = reader.load_file(tmp_path / "model.safetensors"), arrays(run)
    assert {*found} == {*due}
    for name, values in due.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == values.dtype


def test_the_command_finds_the_run_by_the_beginning_of_its_name(
    run: fs.lab.RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("fedavg", tmp_path / "model.pt", run.path.parent)
    assert capsys.readouterr().out == f"{tmp_path}/model.pt: 9 arrays, 43 numbers\n"


def test_what_cannot_be_exported_is_one_sentence(
    run: fs.lab.RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        fs.BadInput, match=r"--to must be a file that ends in \.pt, \.safetensors, got 'model\.onnx'"
    ):
        export(run, Path("model.onnx"))
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(fs.BadInput, match=r"needs safetensors: pip install safetensors, or choose \.pt"):
        export(run, tmp_path / "model.safetensors")
    assert not [*tmp_path.iterdir()]
    parts = fs.Run(fs.Serial(fs.Quadratic.random(3, 2), fs.Local(0.1)), fs.FedAvg(), fs.Bernoulli(0.5), 2)
    with pytest.raises(fs.BadInput, match=r"has no model\.json: its task has no model"):
        arrays(fs.record(parts, tmp_path / "runs"))
    with pytest.raises(fs.BadInput, match="is not finished"):
        arrays(fs.lab.RunFolder(tmp_path / "nothing"))

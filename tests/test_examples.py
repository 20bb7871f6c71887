"""The examples for copying run, with fewer rounds, and `fedstale report` reads what they store."""

import importlib
import random
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedstale as fs

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {
    "char_lstm": (),
    "regression": (),
    "resnet18": (),
    "tabular": ("sklearn",),
    "lora": ("peft", "transformers"),
}
PRINTS = {
    "char_lstm": "poets: Supervised, 6 clients",
    "resnet18": "44622 parameters, and 620 numbers in buffers",
    "regression": r"mountains \d+\.\d+ degrees",
    "tabular": r"frequent \d\.\d+   rare \d\.\d+",
    "lora": "parameters that clients train and send: 1,090 of 23,012",
}


def photographs(name: str) -> fs.data.Dataset:
    """As many random images as a test can use, in the place of CIFAR-10."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(256, size=(120, 3, 32, 32), dtype=np.uint8), draw.integers(10, size=120)
    return fs.data.Dataset(name, x, y, 100, 10, mean=(0.5,) * 3, std=(0.25,) * 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the other packages
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_compares_stores_and_reports(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in NEEDS[name]:
        pytest.importorskip(package, reason=f"{package} is not installed: see `make test-examples`")
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fs.data, "load", photographs)
    quick = re.sub(r'"rounds": \d+, "seeds": \([\d, ]+\)', '"rounds": 2, "engine": "serial"', text)
    assert quick != text
    quick = quick.replace("WIDTH = 16", "WIDTH = 4").replace("20, seed=0, fraction=0.1", "4, seed=0")
    Path(f"{name}.py").write_text(quick, encoding="utf-8")
    runpy.run_path(f"{name}.py", run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(PRINTS[name], printed)
    assert re.search("^fedavg .*\nauto ", printed, re.M)
    importlib.import_module("fedstale.cli.app").command()(["report", "runs"], standalone_mode=False)
    assert "2 runs in 1 setting" in capsys.readouterr().out


def digits(name: str) -> fs.data.Dataset:
    """Random images of the size of MNIST's, half of them for testing."""
    draw = np.random.default_rng(0)
    x = draw.integers(256, size=(600, 1, 28, 28), dtype=np.uint8)
    return fs.data.Dataset(name, x, draw.integers(10, size=600), 300, 10, mean=(0.5,), std=(0.25,))


def published(folder: Path) -> dict[str, Any]:
    """The names of the example, and a folder that it can read: one availability, three clients, four rounds."""
    (folder / "matrices").mkdir()
    (folder / "matrices" / "made-up.csv").write_text("1,0,0,1\n1,1,0,1\n0,1,0,1\n")
    head = "availability,algorithm,alpha,metric,0,1,2,3,4\n"
    rows = [f"made-up,{name},10,test_accuracy,0.1,0.2,0.3,0.4,0.5\n" for name in ("fedavg", "fedvarp")]
    (folder / "published.csv").write_text(head + "made-up,fedavg,10,train_loss,3,2,2,2,2\n" + "".join(rows))
    return runpy.run_path(str(EXAMPLES / "published_runs" / "main.py"))


@pytest.mark.parametrize("batches", ["own", "torch"])
def test_published_runs_are_repeated_from_a_folder(
    batches: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = published(tmp_path)
    assert len((EXAMPLES / "published_runs" / "main.py").read_text().splitlines()) <= 150
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fs.data, "load", digits)
    small = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    monkeypatch.setitem(names["main"].__globals__, "network", lambda: small)
    monkeypatch.setattr(sys, "argv", ["main.py", str(tmp_path), "--batches", batches])
    names["main"]()
    lines = re.findall(r"^made-up, (\w+): 0.5000, (0\.\d{4}), (.*)$", capsys.readouterr().out, re.M)
    assert [name for name, _, _ in lines] == ["fedavg", "fedvarp"]
    assert [f"{100 * (float(last) - 0.5):+.2f}" for _, last, _ in lines] == [gap for _, _, gap in lines]
    assert Path(f"published-{batches}.png").stat().st_size > 10_000


def test_rounding_moves_a_published_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = published(tmp_path)
    monkeypatch.setattr(fs.data, "load", digits)
    small = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    monkeypatch.setitem(names["task_of"].__globals__, "network", lambda: small)
    monkeypatch.setitem(sys.modules, "main", SimpleNamespace(**names))
    rounding = runpy.run_path(str(EXAMPLES / "published_runs" / "rounding.py"))
    task = names["task_of"](3, 10.0, np.ones((4, 3), bool), "torch")
    before = task.init(0).copy()
    apart = np.abs(rounding["nudged"](task, np.random.default_rng(1)).init(0) / before - 1)
    assert 0 < apart.max() < 3e-7
    rounding["main"](tmp_path, "made-up", "fedvarp", 2)
    out = capsys.readouterr().out
    assert out.startswith("made-up, fedvarp: published 0.5000\n")
    assert re.findall(r"^start (\d): 0\.\d{4}$", out, re.M) == ["1", "2"]


def test_the_minibatches_of_published_runs_are_those_of_torch_loaders(tmp_path: Path) -> None:
    names, sizes = published(tmp_path), [150, 40, 260]
    available = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]], bool)
    orders = names["torch_orders"](available, sizes)
    torch.manual_seed(names["SEED"])
    for _ in range(5):
        names["network"]()
    loaders = [torch.utils.data.DataLoader(range(size), 128, shuffle=True) for size in sizes]  # type: ignore[arg-type]
    plain = [torch.utils.data.DataLoader(range(9), 128) for _ in range(6)]  # type: ignore[arg-type]
    for t, row in enumerate(available, 1):
        for loader in plain:
            list(loader)
        for client in np.flatnonzero(row).tolist():
            assert torch.cat([*loaders[client]]).tolist() == orders[t, client].tolist()
    assert len(orders) == 4


def test_the_labels_of_published_runs_are_divided_in_shuffled_order(tmp_path: Path) -> None:
    y = np.arange(1000) % 10
    clients = published(tmp_path)["divided"](y, 3, 0.5)
    assert len({*np.concatenate(clients).tolist()}) == sum(map(len, clients)) == 200
    labels = list(range(10))
    random.Random(12345).shuffle(labels)
    draw, size = np.random.RandomState(12345), sum(int((y[mine] == labels[0]).sum()) for mine in clients)
    counts = draw.multinomial(size, draw.dirichlet([0.5] * 3))  # the first label takes the first proportions
    assert [int((y[mine] == labels[0]).sum()) for mine in clients] == counts.tolist()


def test_the_theory_advises_what_its_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["theory.py", str(tmp_path / "theory.png")])
    runpy.run_path(str(EXAMPLES / "theory.py"), run_name="__main__")
    *printed, _ = capsys.readouterr().out.splitlines()
    page = (EXAMPLES.parent / "docs" / "theory.md").read_text(encoding="utf-8")
    assert len(printed) == 5
    assert "\n".join(printed) in page
    assert (tmp_path / "theory.png").stat().st_size > 10_000

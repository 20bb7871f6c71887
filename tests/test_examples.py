"""The examples for copying run, with fewer rounds, and `fedstale report` reads what they store."""

import importlib
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

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

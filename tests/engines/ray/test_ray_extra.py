"""Without Ray: a sentence. These run in every environment."""

import sys
from pathlib import Path

import pytest

from fedstale.core import BadInput
from fedstale.engines import make
from fedstale.lab import executors
from fedstale.lab import plan as sweep
from fedstale.lab.papers import figure
from tests.engines.slow_tasks import LOCAL, Slow

WANTED = r'^engine ray needs the extra: pip install "fedstale\[ray\]"$'


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)


def test_engine() -> None:
    with pytest.raises(BadInput, match=WANTED):
        make("ray", Slow(0.0), LOCAL)


def test_sweep(tmp_path: Path) -> None:
    raw = {
        "figure": {"title": "t", "paper": "amplified", "draw": "curves"},
        "scale": {"paper": {}},
        "rounds": 2,
        "algorithms": ["fedavg"],
        "data": {"dataset": "quadratic", "clients": 4},
        "local": {"lr": 0.1},
        "participation": {"kind": "bernoulli", "p": 0.5},
    }
    cells = sweep.planned(figure.cells(figure.at_scale("small", raw, "paper")), tmp_path)
    with pytest.raises(BadInput, match=WANTED):
        executors.compute(cells, jobs=2, resume=False, command="", say=print, executor=executors.Executor.ray)

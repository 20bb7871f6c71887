"""`fedstale run` in this process: what it computes once."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fedstale.cli.run import run
from fedstale.experiments import plan as planning


def test_an_experiment_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    described = planning.describe
    monkeypatch.setattr(planning, "describe", lambda *part: calls.append(part) or described(*part))
    monkeypatch.setattr(sys, "argv", ["fedstale"])
    run("quadratic", ["rounds=2"], tmp_path / "runs", "1")
    assert len(calls) == 1, "a plan describes the participation once"

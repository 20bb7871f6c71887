"""The example's participation, replayed on Ray, ends with the fingerprint that Serial gives."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "ray.exceptions", reason="ray is not installed; `make test-ray` runs these in their own environment"
)

from fedstale.tasks.local import one_thread

EXAMPLE = Path(__file__).parents[3] / "examples" / "federation"


def test_ray_is_a_way_to_the_same_fingerprint(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    spec = importlib.util.spec_from_file_location("example_of_a_federation", EXAMPLE / "main.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with one_thread():
        found = {name: example.replay(example.of(6), EXAMPLE / "trace.csv", name) for name in ("serial", "ray")}
    assert found["serial"] == found["ray"]
    assert len(found["ray"]) == 16

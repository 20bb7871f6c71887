"""The example's app in Flower's own simulation, `run_simulation`, which needs Ray: half a minute."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed; `make test-flower` installs flwr[simulation]")

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def test_the_example_trains_and_evaluates_in_a_simulation():
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples" / "flower-quickstart"), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "tests.flower.simulated"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=900)
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("found "))[6:])
    assert [*found["train"]] == [*found["evaluate"]] == ["1", "2", "3"]
    assert found["train"]["3"] < found["train"]["1"]
    assert [*found["weights"]] == [f"partition-{k}" for k in range(4)]
    weights = [*found["weights"].values()]
    assert weights[:2] == found["sizes"][:2]  # always there, of different sizes: a name is that of the partition
    assert weights[0] != weights[1]

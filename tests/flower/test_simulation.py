"""The example's app in Flower's own simulation, `run_simulation`, which needs Ray: half a minute."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed; `make test-flower` installs flwr[simulation]")

ROOT = Path(__file__).parents[2]
TRIES, SECONDS = 2, 300  # it takes half a minute on a machine that is not busy
HANGS = "Ray hangs"
CRASHED = (
    "Simulation Runtime crashed",
    "the clients do not start",
    HANGS,
)  # Ray itself, on a machine that is too busy
pytestmark = pytest.mark.slow


def simulated() -> str:
    """What the simulation prints, in a process with a Ray of its own."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples" / "flower-quickstart"), *filter(None, sys.path)])
    switches = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"}
    command = [sys.executable, "-m", "tests.flower.simulated"]
    with tempfile.TemporaryDirectory(
        prefix="ray", ignore_cleanup_errors=True
    ) as folder:  # a short name, for sockets
        environment = os.environ | switches | {"PYTHONPATH": path, "RAY_TMPDIR": folder}
        environment.pop("RAY_ADDRESS", None)  # a cluster of somebody else
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return HANGS
    return f"\n{done.stdout}\n{done.stderr}\nexit status {done.returncode}"


def test_the_example_trains_and_evaluates_in_a_simulation():
    for _ in range(TRIES):
        printed = simulated()
        if "\nfound " in printed:
            break
    else:
        if any(sign in printed for sign in CRASHED):
            pytest.skip(
                f"Ray does not start its processes on this machine, {TRIES} times in a row: it may be too busy"
            )
        raise AssertionError(printed[-4000:])
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("found "))[6:])
    assert [*found["train"]] == [*found["evaluate"]] == ["1", "2", "3"]
    assert found["train"]["3"] < found["train"]["1"]
    assert [*found["weights"]] == [f"partition-{k}" for k in range(4)]
    weights = [*found["weights"].values()]
    assert weights[:2] == found["sizes"][:2]  # always there, of different sizes: a name is that of the partition
    assert weights[0] != weights[1]

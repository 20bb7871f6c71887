"""The example's app on a real SuperLink with two SuperNodes that have keys: it takes a minute or two."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from fedstale.cli import federation as cli
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import control, launcher, processes
from fedstale.flower.federation.ops.processes import BIN

pytestmark = pytest.mark.slow
APP = Path(__file__).parents[2] / "examples" / "flower-quickstart"
PATIENCE = 900.0  # seconds for one run


def start_node(s, k):
    """A SuperNode as its owner would start it, with a key."""
    keys = s.folder / "keys"
    command = [
        BIN / "flower-supernode", "--superlink", f"{s.file.link.host}:{s.file.link.port}", "--host", "127.0.0.1",
        "--port", str(launcher.free_port()), "--root-certificates", keys / "ca.pem",
        "--auth-supernode-private-key", keys / f"client-{k}", "--node-config", f"partition-id={k} num-partitions=2",
    ]  # fmt: skip
    processes.spawn(s.folder, f"client-{k}", command)


def run(s, state, t):
    """Submit the app for one round and wait for its end; returns the names of the clients in the state after it."""
    number = control.submit(s, {"rule": "auto", "num-server-rounds": 1, "state": str(state)})
    until = time.monotonic() + PATIENCE
    while (about := saved(state))["t"] < t and time.monotonic() < until:
        time.sleep(0.5)
    while (found := control.run_state(s, number))[0] != "finished" and time.monotonic() < until:
        time.sleep(2)
    assert (found, about["t"]) == (("finished", "completed"), t)
    return about["names"]


def saved(state):
    about = json.loads(str(np.load(state)["about"])) if state.exists() else {}
    return about | {"t": about["state"]["items"]["1"]["items"]["0"]["value"] if about else 0}


def evaluated(s, k):
    return (s.folder / "logs" / f"client-{k}.log").read_text().count("Sending: evaluate message")


def test_the_example_trains_evaluates_and_goes_on_with_the_same_clients_after_a_restart(tmp_path):
    shutil.copytree(APP, tmp_path / "app")
    folder, names = tmp_path / "f", []
    cli.init(folder, clients=2, rounds=1, deadline=600.0, port=launcher.free_port(), app=tmp_path / "app", tls=True)
    s = settings.read(folder)
    try:
        launcher.start_link(s)
        control.wait_until_ready(s)
        control.register(s)
        for t in (1, 2):
            for k in (0, 1):
                start_node(s, k)
            names.append(run(s, tmp_path / "state.npz", t))
            assert [evaluated(s, k) for k in (0, 1)] == [t, t]
            processes.stop(s.folder, "client-0", "client-1", patience=3.0)
        assert names[0] == names[1]
        assert [name[:4] for name in names[0]] == ["key-", "key-"]
    finally:
        launcher.stop_all(s, patience=3.0)

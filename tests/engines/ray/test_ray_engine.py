"""The engine gives the bits of the reference, and leaves nothing behind."""

import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip(
    "ray.exceptions", reason="ray is not installed; `make test-ray` runs these in their own environment"
)

from torch import nn

import fedstale as fs
from fedstale.core import BadInput, Job, Local
from fedstale.engines import Serial, make
from fedstale.engines.ray import engine as rays
from fedstale.engines.ray.engine import Ray
from fedstale.tasks.local import one_thread
from fedstale.testing import check_engine
from tests.engines.ray.processes import below, gone, listening
from tests.engines.slow_tasks import LOCAL, Deadly, Failing, Slow
from tests.engines.tasks_for_engines import images, vectors

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, also as IPv6 writes it
HERE = Path(__file__).parent


def test_it_passes_the_battery(cluster: Any) -> None:
    with one_thread(), make("ray", images(ridge=0.1), Local(0.05, steps=4, batch=16)) as engine:  # type: ignore[attr-defined]
        assert engine.workers == 2
        check_engine(engine, rounds=5)


def test_buffers_that_training_changes_travel_too(cluster: Any) -> None:
    task = vectors(lambda: nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3)))
    with one_thread(), Ray(task, Local(0.1, steps=2, batch=16)) as engine:
        check_engine(engine, rounds=2)


def test_training_loops_of_ones_own_and_what_clients_keep_travel_too(cluster: Any) -> None:
    def loop(model: Any, data: Any, context: Any) -> None:
        context.state["round"] = context.round + context.state.get("round", torch.zeros(2))
        nn.init.constant_(model[0].bias, float(context.state["round"][0]))

    task = vectors(lambda: nn.Sequential(nn.Linear(8, 3), nn.Dropout()))
    with one_thread(), Ray(task, Local(0.1, train=loop)) as engine:
        check_engine(engine, rounds=2)


def test_runs_have_the_bits_of_serial(cluster: Any) -> None:
    """With a rule that asks for losses before it selects, one that adds a drift, and one that remembers."""
    task, who = images(), fs.participation.Markov(0.6, 0.3)

    def end(engine: Any, strategy: Any, estimator: Any) -> tuple[bytes, list[list[int]]]:
        rounds = list(fs.simulate(engine, strategy, who, rounds=6, seed=3, estimator=estimator))
        return rounds[-1].params.tobytes(), [s.clients.tolist() for s in rounds]

    with one_thread(), Ray(task, Local(0.05, steps=3, batch=16)) as engine:
        for rule in (
            (fs.strategies.CAFed(), fs.estimators.Transitions()),
            (fs.strategies.Scaffold(), fs.estimators.Known()),
            (fs.FedStale(0.5), fs.Intervals()),
        ):
            assert end(engine, *rule) == end(Serial(task, engine.local), *rule), rule


def test_models_of_a_script_need_no_module(cluster: Any) -> None:
    task = vectors(lambda: nn.Linear(8, 3))
    with one_thread(), Ray(task, Local(0.1)) as engine:
        check_engine(engine, rounds=1)


def test_data_are_in_memory_once(cluster: Any) -> None:
    x = torch.randn(4, 100_000)
    task = SimpleNamespace(n=4, d=1, x=x, y=x.numpy())
    packed, memory = cluster.get(rays._put(cluster, task), timeout=300)  # type: ignore[arg-type]
    assert len(packed) < 2000
    assert memory.nbytes == pytest.approx(2 * 4 * x.numel(), abs=200)


def test_error_of_a_client_is_raised_and_the_engine_goes_on(cluster: Any) -> None:
    task = Failing(0.0)
    with Ray(task, LOCAL) as engine:
        with pytest.raises(BadInput, match=r"^client 2 is out of order$"):
            engine.train([Job(task.init(0), np.arange(6), 0, 1, LOCAL)])
        job = Job(task.init(0), np.array([0, 5]), 0, 1, LOCAL)
        np.testing.assert_array_equal(engine.train([job])[0].updates, Serial(task, LOCAL).train([job])[0].updates)


def test_client_that_kills_every_actor_is_named(cluster: Any) -> None:
    task = Deadly(0.0)
    with Ray(task, LOCAL) as engine, pytest.raises(ChildProcessError, match=r"clients \[2\]"):
        engine.train([Job(task.init(0), np.arange(6), 0, 1, LOCAL)])


def test_task_that_the_nodes_cannot_import_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_here")
    module.Hidden = type("Hidden", (Slow,), {"__module__": "only_here"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_here", module)
    task = module.Hidden(0.0)
    with Ray(task, LOCAL) as engine, pytest.raises(BadInput, match=r"import fedstale and the task.*only_here"):
        engine.train([Job(task.init(0), np.arange(6), 0, 1, LOCAL)])


def test_nodes_that_never_answer_are_not_awaited_for_ever(cluster: Any) -> None:
    task = Slow(0.0)
    with Ray(task, LOCAL) as crowd:  # takes both places
        crowd.train([Job(task.init(0), np.arange(6), 0, 1, LOCAL)])
        with Ray(task, LOCAL, patience=1.0) as engine, pytest.raises(TimeoutError, match="ray status"):
            engine.train([Job(task.init(0), np.arange(6), 0, 1, LOCAL)])


def test_an_actor_asks_for_a_gpu_if_the_task_is_on_one(cluster: Any) -> None:
    on_gpu = SimpleNamespace(n=2, d=3, device=torch.device("cuda"))
    assert rays.needed(on_gpu) == {"num_cpus": 1, "num_gpus": 1}  # type: ignore[arg-type]
    assert rays.needed(images()) == rays.needed(Slow(0.0)) == {"num_cpus": 1, "num_gpus": 0}
    with pytest.raises(BadInput, match="a node with a GPU"):
        Ray(on_gpu, LOCAL)  # type: ignore[arg-type]


def test_a_cluster_of_ours_is_seen_by_this_machine_only(cluster: Any) -> None:
    found = listening({os.getpid(), *below(os.getpid())})
    assert found
    assert found <= LOOPBACK


def test_a_closed_engine_says_so(cluster: Any) -> None:
    engine = Ray(Slow(0.0), LOCAL)
    engine.close()
    with pytest.raises(BadInput, match="closed"):
        engine.losses(Job(engine.task.init(0), np.arange(6), 0, 1, LOCAL))
    assert cluster.is_initialized()  # it was not the engine's to end


@pytest.mark.parametrize("killed", [True, False])
def test_nothing_is_left_behind(killed: bool) -> None:
    """Neither by a program that is killed nor by one that forgets to close its engine."""
    command = [sys.executable, str(HERE / "parent_of_actors.py"), "600" if killed else "0"]
    path = os.pathsep.join([str(HERE.parents[2]), *filter(None, sys.path)])
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are too long for the names of sockets
        env["TMPDIR"] = folder
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=env) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "trained\n"
            family = below(parent.pid)
            assert len(family) >= 4
            parent.kill() if killed else parent.communicate("\n", timeout=600)
        assert gone(family)
        assert killed or os.listdir(folder) == []


def test_a_cluster_that_is_not_there() -> None:
    code = (
        "from tests.engines.slow_tasks import *; from fedstale.engines import make; make('ray', Slow(0.0), LOCAL)"
    )
    path = os.pathsep.join([str(HERE.parents[2]), *filter(None, sys.path)])
    env = os.environ | {"PYTHONPATH": path, "RAY_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600)
    assert "BadInput: RAY_ADDRESS must be that of a cluster, got '127.0.0.1:1'" in done.stderr

"""Processes and nodes that die in the middle of a round: the same bits, and nobody waits for ever."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip(
    "ray.exceptions", reason="ray is not installed; `make test-ray` runs these in their own environment"
)

import fedstale as fs
from fedstale.engines import Serial
from fedstale.engines.ray.engine import Ray
from tests.engines.ray.doomed_tasks import LOCAL, Doomed, marked, woken

WHO = fs.TwoGroups(p_min=0.5)


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    thread = Thread(target=act)
    thread.start()
    yield
    thread.join()


def reference(rounds: int, mark: Path) -> list[bytes]:
    mark.touch()
    task = Doomed(mark, 0.0)
    runs = fs.simulate(Serial(task, LOCAL), fs.FedStale(0.5), WHO, rounds=rounds, seed=1)
    return [s.params.tobytes() for s in runs]


def test_an_actor_killed_in_every_round_changes_no_bit(cluster: Any, tmp_path: Path) -> None:
    mark, rounds = tmp_path / "mark", 10
    wanted, killed = reference(rounds, mark), set[int]()
    with Ray(Doomed(mark, pause=600.0), LOCAL) as engine:
        run = fs.simulate(engine, fs.FedStale(0.5), WHO, rounds=rounds, seed=1)
        for bits in wanted:
            mark.unlink()

            def kill() -> None:
                pid = marked(mark)
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)

            with meanwhile(kill):
                assert next(run).params.tobytes() == bits
    assert len(killed) == rounds


def test_a_frozen_actor_is_not_waited_for(cluster: Any, tmp_path: Path) -> None:
    """Alive, but silent: another one does its work."""
    mark = tmp_path / "mark"
    (wanted,) = reference(1, tmp_path / "before")
    with Ray(Doomed(mark, pause=600.0), LOCAL) as engine:
        (end,) = fs.simulate(engine, fs.FedStale(0.5), WHO, rounds=1, seed=1)
        assert end.params.tobytes() == wanted
        assert not woken(mark)


def test_a_lost_node_changes_no_bit(tmp_path: Path) -> None:
    """Two nodes with one actor each: the one that is left has no place for the other's, a new one has."""
    folder = Path(__file__).parent
    path = os.pathsep.join([str(folder.parents[2]), *filter(None, sys.path)])
    words = [sys.executable, str(folder / "lose_a_node.py"), str(tmp_path / "mark")]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=900)
    assert done.stdout.split() == ["two", "nodes", "same", "bits", "one", "lost", "same", "bits", "one", "new"], (
        done.stdout + done.stderr
    )

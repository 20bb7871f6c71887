"""What the tests of the federation share."""

from pathlib import Path
from typing import Any

import numpy as np

from fedstale import Quadratic, simulate
from fedstale.core import Checkpoint, Local, Task
from fedstale.engines import Serial
from fedstale.flower.federation import settings
from fedstale.flower.federation.server.rounds import ClosedRound, Server
from fedstale.participation import Trace
from tests.flower.federation.inprocess import InProcess, roster_of

N, D = 6, 7
TASK = Quadratic.random(N, D, seed=3, noise=0.2)
LOCAL = {"lr": 0.05, "steps": 3}


def made(folder: Path, **changes: Any) -> settings.Settings:
    raw: dict[str, Any] = {"name": "test", "rounds": 8, "strategy": "fedstale", "local": LOCAL}
    return settings.check(folder, raw | changes)


def server(folder: Path, link: InProcess, n: int = N, **changes: Any) -> Server:
    return Server(made(folder, **changes), link, lambda: roster_of(range(n)), TASK.init)


def table(rounds: int, seed: int = 0, p: float = 0.6) -> np.ndarray:
    """A participation table in which every client and every round occurs."""
    made_ = np.random.default_rng(seed).random((rounds, N)) < p
    made_[0] = True
    made_[np.arange(rounds), np.arange(rounds) % N] = True
    return made_


def played(s: Server, link: InProcess, rows: np.ndarray) -> list[ClosedRound]:
    """The rounds of `s`, with who is there taken from the rows of the rounds to come."""
    done, play = [], s.play()
    for row in rows:
        link.there = np.flatnonzero(row).tolist()
        done.append(next(play))
    play.close()
    return done


def simulated(s: settings.Settings, rows: np.ndarray) -> np.ndarray:
    """The parameters after a simulation with this participation."""
    return simulated_task(s, rows, TASK).params


def simulated_task(s: settings.Settings, rows: np.ndarray, task: Task) -> Checkpoint:
    """The end of a simulation of a task with this participation."""
    engine = Serial(task, Local(**LOCAL))
    rules = s.rules
    *_, last = simulate(
        engine, rules.strategy, Trace(rows), rounds=len(rows), seed=s.file.seed, server=rules.server,
        estimator=rules.estimator, defence=rules.defence,
    )  # fmt: skip
    return last.checkpoint

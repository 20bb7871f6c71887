"""A suite of two cells that takes a second, and a contest of it."""

import atexit
import copy
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from fedstale.lab.arena import contest, suite
from fedstale.lab.executors import compute
from fedstale.lab.runs.store import read_json

RAW: dict[str, Any] = {
    "name": "small",
    "size": "smoke",
    "title": "A small suite",
    "rules": ["fedavg", "unbiased", {"kind": "fedstale", "beta": 0.9, "label": "stale"}],
    "seeds": [1, 2],
    "cells": [["bowl", "halves", "known"], ["bowl", "turns", "estimated"]],
    "tuning": {"seeds": [11], "share": 0.5, "more": 1, "keep": 2, "server": [1, 3]},
    "task": {
        "bowl": {
            "rates": [0.02, 0.1], "rounds": 20, "local": {"steps": 2}, "evaluate_every": 5,
            "data": {"dataset": "quadratic", "clients": 4, "dimension": 3, "spread": 2.0, "noise": 0.1},
        },
    },
    "participation": {
        "halves": {"kind": "two-groups", "p_min": 0.3},
        "turns": {"kind": "cyclic", "groups": 2, "on": 3, "off": 3},
    },
}  # fmt: skip
TOML = """
title = "A small suite"
rules = ["fedavg", "unbiased", { kind = "fedstale", beta = 0.9, label = "stale" }]
seeds = [1, 2]
cells = [["bowl", "halves", "known"], ["bowl", "turns", "estimated"]]
tuning = { seeds = [11], share = 0.5, more = 1, keep = 2, server = [1, 3] }
[task.bowl]
rates = [0.02, 0.1]
rounds = 400
evaluate_every = 5
local = { steps = 2 }
data = { dataset = "quadratic", clients = 4, dimension = 3, spread = 2.0, noise = 0.1 }
[participation]
halves = { kind = "two-groups", p_min = 0.3 }
turns = { kind = "cyclic", groups = 2, on = 3, off = 3 }
[size.smoke]
"task.bowl.rounds" = 20
[size.laptop]
"""


def raw(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(RAW) | changes


def hold(out: Path, said: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    """A finished contest of the small suite."""
    found = contest.enter(suite.checked(raw(**changes)), out)

    def work(cells: Any) -> None:
        compute(cells, jobs=1, resume=True, command="", say=lambda line: None)

    return contest.hold(found, out, work, (said if said is not None else []).append)


@cache
def _finished() -> Path:
    """Computed once for all tests of a process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    hold(folder / "contest")
    return folder / "contest"


def finished(out: Path) -> dict[str, Any]:
    """A copy of the finished contest of the small suite, and its record."""
    shutil.copytree(_finished(), out, dirs_exist_ok=True)
    return read_json(out / "arena.json")

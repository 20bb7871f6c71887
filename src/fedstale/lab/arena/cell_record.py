"""What the record of a contest has of a cell: its hash and its start, and of each rule the tuning, runs and costs.

A rule costs memory at the server and at a client, messages, and arithmetic.
"""

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from fedstale import engines
from fedstale.core.abilities import evaluate
from fedstale.core.hooks import bound, hooks_of
from fedstale.core.local import Work
from fedstale.core.protocols import Task
from fedstale.core.records import Array, Availability, Ids, Round
from fedstale.core.rng import stream
from fedstale.lab.arena.suite import Place, Suite, labelled, planned
from fedstale.lab.arena.tuning import Choice, Scores
from fedstale.lab.build import make_task
from fedstale.lab.cadence import cadence, evaluation_task
from fedstale.lab.plan import Cell, Planned, by_label
from fedstale.lab.runs.codec import pack
from fedstale.lab.runs.metrics import OBJECTIVE
from fedstale.lab.runs.store import canonical
from fedstale.lab.spec import Algorithm, Table
from fedstale.privacy.sums import placed
from fedstale.simulate import Run, checked, first

FLOAT = 4  # bytes of a number in a message
REPETITIONS = 5  # of a measurement


def cell_record(
    suite: Suite, folder: Path, place: Place, chosen: Mapping[str, Choice]
) -> tuple[Table, list[Table]]:
    """What the arena reads of a cell, whenever, wherever and how often interrupted it was computed.

    And, which depends on the machine, how long the server takes for each rule with as many clients as come.
    """
    settings = {label: [c.setting] for label, c in chosen.items()}
    cell = planned(suite, place, suite.seeds, settings, 1.0, folder)
    task = make_task(cell.experiment.data, cell.experiment.model.model_dump())
    runs, rules, times = by_label(cell.runs), {}, []
    for label, c in chosen.items():
        mine = runs[labelled(label, c.setting)]
        took = server_ms(mine[0].algorithm, task, _heard(mine[0], task.n))
        times.append({"cell": place.name, "rule": label, "server_ms": round(took, 4)})
        rules[label] = {
            **c.setting._asdict(), "edge": c.edge, "tuning_runs": c.tried * len(suite.tuning.seeds),
            "short": _pairs(c.short), "whole": _pairs(c.whole),
            "runs": [p.folder.path.name for p in mine], "units": units(mine[0].algorithm, task),
        }  # fmt: skip
    about = {"name": place.name, **place._asdict(), "rounds": cell.experiment.rounds}
    size = {"clients": task.n, "dimension": task.d, "hash": _hash(cell, task), "start": _start(cell, task)}
    size |= {"hours": cell.experiment.clock["hours"]} if cell.experiment.clock else {}
    return about | size | {"rules": rules}, times


def _pairs(scores: Scores) -> list[list[float | None]]:
    return [[*s, scores[s] if np.isfinite(scores[s]) else None] for s in sorted(scores)]


def _start(cell: Cell, task: Task) -> float:
    """The training objective before the first round, mean over the seeds."""
    values = []
    for p in next(iter(by_label(cell.runs).values())):
        a, engine = p.algorithm, engines.make("serial", task, p.algorithm.local)
        rule, rounds = bound(a.strategy, task), p.config["rounds"]
        run = checked(Run(engine, rule, p.participation, rounds, p.seed, local=a.local))
        where = evaluation_task(task, p.config, cadence(run, p.config).clients)
        values.append(float(evaluate(where, first(run))[OBJECTIVE]))
    return float(np.mean(values))


def _hash(cell: Cell, task: Any) -> str:
    """A hash of the data of every client, who is there in every round of every evaluation seed, and the clock."""
    from fedstale.tasks.checksum import describe_task

    found = hashlib.sha256(json.dumps(describe_task(task)[0], sort_keys=True).encode())
    process = cell.runs[0].participation
    for seed in cell.experiment.seeds:
        rows = process.rows(task.n, stream(seed, "participation"))
        found.update(np.packbits(np.array([*islice(rows, cell.experiment.rounds)])).tobytes())
    if clocks := [p.config["clock"] for p in cell.runs if p.clock]:
        found = hashlib.sha256(found.digest() + canonical({"": clocks}).encode())
    return found.hexdigest()[:16]


def _heard(p: Planned, n: int) -> int:
    """How many clients come to a round on average; with a clock, at most."""
    rule = p.clock.pace.rule(n) if p.clock else None
    return round(float(np.sum(p.participation.probs(n)))) if rule is None else rule.arrivals or rule.most


def units(rule: Algorithm, task: Task) -> Table:
    """Bytes of state, bytes of the messages of a client, and arithmetic of a client in a round.

    A client that trains sends one vector and is sent one, two if the rule corrects local gradients (c of
    SCAFFOLD). A rule that selects by losses sends the model to everybody who is available, and those that it leaves
    out have computed one loss (`look`; appendix H.A of the thesis). `unheard`: all clients train in every round,
    also those that are not there.
    """
    strategy = placed(rule.strategy)
    n, d, hooks, state = task.n, task.d, hooks_of(strategy), strategy.init(task.n, task.d)
    at_clients = sum(_bytes(attrgetter(name)(state)) for name in hooks.at_clients)
    training, look = _flops(rule, task)
    return {
        "server_bytes": _bytes(state) - at_clients, "client_bytes": at_clients // n, "up": FLOAT * d,
        "down": FLOAT * d * ((hooks.select is None) + (hooks.drift is not None)),
        "asked": FLOAT * d if hooks.select else 0, "flops": training, "look": look if hooks.select else 0,
        "unheard": hooks.unheard is not None,
    }  # fmt: skip


def _bytes(tree: Any) -> int:
    """Bytes of all arrays in a state."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    pack(tree, "", arrays)
    return sum(array.nbytes for array in arrays.values())


def _flops(rule: Algorithm, task: Task) -> tuple[float | None, float | None]:
    """Multiplications and additions of a client that trains, and of a first loss alone, with a torch model."""
    if "torch" not in sys.modules:  # it takes a second to load, and no task without it has such a model
        return None, None
    from fedstale.tasks.flops import sample_flops

    one, local = sample_flops(task), rule.local
    if one is None or local.steps is None:
        return None, None
    return one.gradient * local.steps * local.batch, one.loss * local.batch


def server_ms(rule: Algorithm, task: Task, participants: int) -> float:
    """Milliseconds of the server in a round of so many clients, the least of a few; they depend on the machine."""
    strategy, n, m = bound(rule.strategy, task), task.n, max(1, min(participants, task.n))
    rng, probs, took = stream(0, "server"), np.full(n, m / n, np.float32), []
    updates = rng.standard_normal((m, task.d), np.float32) * np.float32(1e-3)
    state, select = strategy.init(n, task.d), hooks_of(strategy).select
    for t in range(1, REPETITIONS + 1):
        there, losses = np.arange(m), np.ones(m, np.float32)
        start = time.perf_counter()
        if select:
            known = Availability(t, there, losses, task.weights, probs, np.zeros(n, np.float32))
            there, state = select(state, known)
        _, state = strategy.aggregate(state, _round(t, there, updates[there], losses[there], task, probs))
        took.append(1000 * (time.perf_counter() - start))
    return min(took)


def _round(t: int, clients: Ids, updates: Array, losses: Array, task: Task, probs: Array) -> Round:
    """A round in which these updates have arrived, after one local step of rate 1."""
    m = len(clients)
    work = Work(np.ones(m, np.int64), np.ones(m, np.int64), np.ones(m))
    params, arrived = np.zeros(task.d, np.float32), np.ones((m, 1), np.bool_)
    return Round(t, params, clients, updates, arrived, losses, task.weights, probs, work, -updates)

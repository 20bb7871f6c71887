"""Hold a contest: compute all runs of a suite, stage by stage, and write the record that the arena reads.

    OUT/suite.json      the suite, with every rule that was added later
    OUT/runs/           the store
    OUT/server-ms.csv   milliseconds of the server in a round, which depend on the machine and are not in the record
    OUT/arena.json      of each cell: its hash, and of each rule its rates, their tuning, its runs and units

What a stage computes follows from the results of the stages before, which are in the store: a contest that was
killed goes on where it stopped, and a rule that is added costs its own runs alone.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedstale import engines
from fedstale.core import Task, bound, require
from fedstale.core.abilities import evaluate
from fedstale.lab.arena.records import learned
from fedstale.lab.arena.suite import (
    Place,
    Suite,
    checked,
    experiment,
    first_settings,
    labelled,
    places,
    rules_of,
)
from fedstale.lab.build import make_task
from fedstale.lab.cadence import cadence, evaluation_task
from fedstale.lab.costs import server_ms, units
from fedstale.lab.execute import ended
from fedstale.lab.plan import Planned, by_label, plan
from fedstale.lab.runs import query, store
from fedstale.lab.runs.metrics import OBJECTIVE
from fedstale.lab.runs.store import canonical
from fedstale.lab.spec import Table
from fedstale.lab.sweep import Cell
from fedstale.lab.tuning import Choice, Scores, Setting, choice, next_setting, survivors, with_servers
from fedstale.rng import stream
from fedstale.simulate import Run, first
from fedstale.simulate import checked as checked_run

RECORD, SUITE, TIMES = "arena.json", "suite.json", "server-ms.csv"
Settings = Mapping[Place, Mapping[str, Sequence[Setting]]]  # by cell and rule
Found = dict[Place, dict[str, dict[Setting, float]]]  # by cell, rule and setting: the training objective
GROW = ("cells", "task", "participation")  # a suite may get more of them
Compute = Callable[[Sequence[Cell]], None]


class Stage(NamedTuple):
    """Runs of all cells that are computed together."""

    about: str
    settings: Settings
    seeds: Sequence[int]
    share: float  # of the rounds


def enter(suite: Suite, out: Path) -> Suite:
    """The suite of a folder: a new one is written there, one that differs in more than added cells is refused."""
    path, raw = out / SUITE, suite.model_dump()
    if path.exists():
        before = checked(store.read_json(path))
        other = f"{out} holds suite {before.name} at size {before.size} with other settings"
        require(_grown(_terms(before), _terms(suite)), f"{other}: take another folder")
        more = {key: _both(before, suite, key) for key in ("rules", "clocked", "sums")}
        raw = checked(raw | more).model_dump()
    out.mkdir(parents=True, exist_ok=True)
    store.write_json(path, raw)
    return checked(raw)


def _both(before: Suite, now: Suite, key: str) -> list[Any]:
    """A list of two suites, without what is twice."""
    first: list[Any] = getattr(before, key)
    return [*first, *(entry for entry in getattr(now, key) if entry not in first)]


def entered(out: Path) -> Suite:
    """The suite of a folder in which a contest was begun."""
    require((out / SUITE).exists(), f"{out} holds no contest; `fedstale arena run` makes one")
    return checked(store.read_json(out / SUITE))


def _terms(suite: Suite) -> Table:
    return suite.model_dump(exclude={"rules", "clocked", "sums", "engine", "title"})


def _grown(before: Table, now: Table) -> bool:
    """Whether these are the terms of before, perhaps with more cells, tasks and participations."""
    tables = all(before[key].items() <= now[key].items() for key in ("task", "participation"))
    cells = before["cells"] == now["cells"] or (
        "all" not in (before["cells"], now["cells"]) and all(cell in now["cells"] for cell in before["cells"])
    )
    return tables and cells and all(now[key] == of for key, of in before.items() if key not in GROW)


def hold(
    suite: Suite, out: Path, compute: Compute, say: Callable[[str], None], each: Callable[..., Iterable[Any]] = map
) -> Table:
    """Compute what is missing and write the record; `each` is `map`, perhaps elsewhere."""
    folder, tuning = store.open_store(out / "runs").resolve(), suite.tuning

    def run(about: str, settings: Settings, seeds: Sequence[int], share: float = 1.0) -> Found:
        return results(suite, Stage(about, settings, seeds, share), folder, compute, say)

    short = _sorted_out(suite, run)
    best = {p: {label: survivors(s, tuning.keep) for label, s in of.items()} for p, of in short.items()}
    whole = run("the best settings over all rounds", best, tuning.seeds)
    chosen = {p: {label: choice(short[p][label], s) for label, s in of.items()} for p, of in whole.items()}
    run("the evaluation", {p: {r: [c.setting] for r, c in of.items()} for p, of in chosen.items()}, suite.seeds)
    cells, times = zip(*each(partial(_cell_record, suite, folder), chosen, chosen.values()), strict=True)
    store.write_csv(out / TIMES, [row for rows in times for row in rows])
    terms = hashlib.sha256(canonical(_terms(suite)).encode()).hexdigest()[:16]
    about = {"suite": suite.name, "size": suite.size, "title": suite.title, "hash": terms, "seeds": suite.seeds}
    record = about | {"tuning": tuning.model_dump(), "cells": [*cells]}
    store.write_json(out / RECORD, record)
    return record


def _sorted_out(suite: Suite, run: Callable[..., Found]) -> Found:
    """The runs over a share of the rounds: first rates, then rates of the server, then rates beside the best."""
    tuning = suite.tuning

    def again(about: str, before: Found, new: Callable[[dict[Setting, float]], list[Setting]]) -> Found:
        asked = {p: {label: new(scores) for label, scores in of.items()} for p, of in before.items()}
        more = run(about, asked, tuning.seeds, tuning.share)
        return {p: {label: scores | more[p][label] for label, scores in of.items()} for p, of in before.items()}

    found = run(
        "the first rates",
        {p: {label: first_settings(suite, p, label) for label in rules_of(suite, p)} for p in places(suite)},
        tuning.seeds,
        tuning.share,
    )
    if len(tuning.server) > 1:
        found = again("rates of the server", found, lambda scores: with_servers(scores, tuning.server))
    for k in range(tuning.more):
        about = f"one more rate, {k + 1} of {tuning.more}"
        found = again(about, found, lambda scores: [next_setting(scores, tuning.factor)])
    return found


def _heard(p: Planned, n: int) -> int:
    """How many clients come to a round on average; with a clock, at most."""
    rule = p.clock.pace.rule(n) if p.clock else None
    return round(float(np.sum(p.participation.probs(n)))) if rule is None else rule.arrivals or rule.most


def results(suite: Suite, stage: Stage, folder: Path, compute: Compute, say: Callable[[str], None]) -> Found:
    """Compute a stage and read its training objectives."""
    cells = {place: _cell(suite, place, stage, folder) for place in stage.settings}
    runs = [p for cell in cells.values() for p in cell.runs]
    say(f"{stage.about}: {len(runs)} runs in {len(cells)} cells, {sum(not ended(p) for p in runs)} to compute")
    compute(list(cells.values()))
    return {
        place: {
            label: {s: _objective(by_label(cells[place].runs)[labelled(label, s)]) for s in settings}
            for label, settings in of.items()
        }
        for place, of in stage.settings.items()
    }


def _cell(suite: Suite, place: Place, stage: Stage, folder: Path) -> Cell:
    whole = experiment(suite, place, stage.seeds, stage.settings[place], stage.share)
    return Cell(place.name, {}, [], whole, plan(whole, folder))


def _objective(runs: Sequence[Planned]) -> float:
    return query.tuning_score([p.folder.result() if learned(p.folder) else None for p in runs])


def _cell_record(
    suite: Suite, folder: Path, place: Place, chosen: Mapping[str, Choice]
) -> tuple[Table, list[Table]]:
    """What the arena reads of a cell, whenever, wherever and how often interrupted it was computed.

    And, which depends on the machine, how long the server takes for each rule with as many clients as come.
    """
    settings = {label: [c.setting] for label, c in chosen.items()}
    cell = _cell(suite, place, Stage("", {place: settings}, suite.seeds, 1.0), folder)
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
        run = checked_run(Run(engine, rule, p.participation, rounds, p.seed, local=a.local))
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

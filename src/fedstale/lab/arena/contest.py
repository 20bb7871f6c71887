"""Hold a contest: compute all runs of a suite, stage by stage, and write the record that the arena reads.

    OUT/suite.json      the suite, with every rule that was added later
    OUT/runs/           the store
    OUT/server-ms.csv   milliseconds of the server in a round, which depend on the machine and are not in the record
    OUT/arena.json      of each cell: its hash, and of each rule its rates, their tuning, its runs and units

What a stage computes follows from the results of the stages before, which are in the store: a contest that was
killed goes on where it stopped, and a rule that is added costs its own runs alone. What a contest will cost is
measured on a sample of every cell before it begins.
"""

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedstale.core import require
from fedstale.lab.arena.cell_record import cell_record
from fedstale.lab.arena.records import RECORD, learned
from fedstale.lab.arena.suite import Place, Suite, checked, first_settings, labelled, places, planned, rules_of
from fedstale.lab.arena.tuning import Setting, choice, next_setting, survivors, with_servers
from fedstale.lab.execute import ended
from fedstale.lab.plan import Cell, by_label
from fedstale.lab.runs import query, store
from fedstale.lab.spec import Table

SUITE, TIMES = "suite.json", "server-ms.csv"
Settings = Mapping[Place, Mapping[str, Sequence[Setting]]]  # by cell and rule
Found = dict[Place, dict[str, dict[Setting, float]]]  # by cell, rule and setting: the training objective
GROW = ("cells", "task", "participation")  # a suite may get more of them
Compute = Callable[[Sequence[Cell]], None]
SHORT, LONG = 12, 24  # rounds of the sample: the last 10 rounds of a run are always evaluated
RULES = 4  # of the sample: local training takes most of the time, and is the same for all


def enter(suite: Suite, out: Path) -> Suite:
    """The suite of a folder: a new one is written there, one that differs in more than added cells is refused."""
    path, raw = out / SUITE, suite.model_dump()
    if path.exists():
        before = checked(store.read_json(path))
        other = f"{out} holds suite {before.name} at size {before.size} with other settings"
        require(_grown(_terms(before), _terms(suite)), f"{other}: take another folder")
        entries = before.model_dump(include={"rules", "clocked", "sums"})
        raw |= {key: [*of, *(entry for entry in raw[key] if entry not in of)] for key, of in entries.items()}
    found = checked(raw)
    out.mkdir(parents=True, exist_ok=True)
    store.write_json(path, found.model_dump())
    return found


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
        cells = {place: planned(suite, place, seeds, of, share, folder) for place, of in settings.items()}
        runs = [p for cell in cells.values() for p in cell.runs]
        say(f"{about}: {len(runs)} runs in {len(cells)} cells, {sum(not ended(p) for p in runs)} to compute")
        compute(list(cells.values()))
        return {place: _objectives(cells[place], of) for place, of in settings.items()}

    short = _sorted_out(suite, run)
    best = {p: {label: survivors(s, tuning.keep) for label, s in of.items()} for p, of in short.items()}
    whole = run("the best settings over all rounds", best, tuning.seeds)
    chosen = {p: {label: choice(short[p][label], s) for label, s in of.items()} for p, of in whole.items()}
    run("the evaluation", {p: {r: [c.setting] for r, c in of.items()} for p, of in chosen.items()}, suite.seeds)
    cells, times = zip(*each(partial(cell_record, suite, folder), chosen, chosen.values()), strict=True)
    store.write_csv(out / TIMES, [row for rows in times for row in rows])
    terms = hashlib.sha256(store.canonical(_terms(suite)).encode()).hexdigest()[:16]
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


def _objectives(cell: Cell, settings: Mapping[str, Sequence[Setting]]) -> dict[str, dict[Setting, float]]:
    """The training objective of every rule at every setting."""
    runs = by_label(cell.runs)
    found = {name: [p.folder.result() if learned(p.folder) else None for p in of] for name, of in runs.items()}
    return {label: {s: query.tuning_score(found[labelled(label, s)]) for s in of} for label, of in settings.items()}


class Estimate(NamedTuple):
    """The size of a contest, and the seconds of one core that it takes."""

    runs: int
    rounds: int
    seconds: float


class Load(NamedTuple):
    """What is computed in one cell."""

    runs: int
    rounds: float


def load(suite: Suite, place: Place) -> Load:
    """The runs and rounds of all stages in a cell."""
    rules, tuning, rounds = len(rules_of(suite, place)), suite.tuning, _length(suite, place)
    short = (len(suite.task[place.task]["rates"]) + tuning.tried) * len(tuning.seeds)
    whole = tuning.keep * len(tuning.seeds) + len(suite.seeds)
    return Load(rules * (short + whole), rules * rounds * (tuning.share * short + whole))


def _length(suite: Suite, place: Place) -> float:
    """Rounds of a whole run; with a clock hundredths of its hours, since rounds differ from rule to rule."""
    task = suite.task[place.task]
    return 100 if "clock" in task else float(task["rounds"])


def estimate(suite: Suite, compute: Compute, say: Callable[[str], None]) -> Estimate:
    """Measure every cell: processor time, which depends little on what else the machine does."""
    seconds, runs, rounds = 0.0, 0, 0.0
    for place in places(suite):
        todo = load(suite, place)
        if not place.belief:  # the reference of a task comes first: loading and compiling do not count
            _seconds(suite, place, 1, compute)
        first, second = (_seconds(suite, place, length, compute) for length in (SHORT, LONG))
        rules = len(_sampled(suite, place))
        each = max(second - first, 0.0) / (LONG - SHORT) / rules  # of a round of a run
        once = max(first - SHORT * each * rules, 0.0) / rules  # of a run: its start and its last rounds
        took = todo.rounds * each + todo.runs * once
        say(f"{place.name}: {todo.runs} runs, about {took / 60:.1f} minutes of a core")
        seconds, runs, rounds = seconds + took, runs + todo.runs, rounds + todo.rounds
    return Estimate(runs, round(rounds), seconds)


def _sampled(suite: Suite, place: Place) -> list[str]:
    """Some of the rules, evenly from the list."""
    labels = list(rules_of(suite, place))
    return labels[:: -(-len(labels) // RULES)]


def _seconds(suite: Suite, place: Place, rounds: int, compute: Compute) -> float:
    mine = _sampled(suite, place)
    settings = {label: first_settings(suite, place, label)[: label in mine] for label in rules_of(suite, place)}
    share = rounds / _length(suite, place)
    with tempfile.TemporaryDirectory() as folder:
        runs = store.open_store(Path(folder) / "runs")
        cell = planned(suite, place, suite.tuning.seeds[:1], settings, share, runs)
        start = time.process_time()
        compute([cell])
        return time.process_time() - start

"""What a contest left: of each rule in each cell its scores by seed, its curves and its costs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Floats, require
from fedstale.lab.runs import query
from fedstale.lab.runs.metrics import OBJECTIVE
from fedstale.lab.runs.statistics import tenth, thinned
from fedstale.lab.runs.store import RunFolder, read_json

RECORD = "arena.json"
FULL = "full"  # the reference: every client in every round
ACCURACY, WORST = "accuracy", "worst_decile"
NOTHING = {OBJECTIVE: np.inf, ACCURACY: 0.0, WORST: 0.0}  # the scores of a run that diverged
POINTS = 60  # of a curve
MOSTLY = 0.5  # of the updates: a run in which more of them were refused has diverged
FLOAT = 4  # bytes of a parameter


class Curve(NamedTuple):
    """A metric over the rounds, or over the hours with a clock, mean over the seeds."""

    rounds: list[float]  # or hours
    values: list[float]


class Entry(NamedTuple):
    """A rule in a cell."""

    rate: float
    server: float  # the factor of the server's step
    edge: bool  # whether the rate is the least or the largest that was tried
    tuning_runs: int
    scores: Mapping[str, Floats]  # (seeds,) by name
    curves: Mapping[str, Curve]
    costs: Mapping[str, float]
    diverged: int  # runs without a result, or with one that means nothing


class Cell(NamedTuple):
    """Where all rules met."""

    name: str
    task: str
    participation: str
    belief: str
    clients: int
    dimension: int
    rounds: int
    hash: str  # of the data of every client, and of who was available in every round
    start: float  # the training objective before the first round
    entries: Mapping[str, Entry]
    hours: float | None = None  # that every rule has, with a clock

    @property
    def end(self) -> float:
        """Where curves end: the last round, or the last hour."""
        return self.rounds if self.hours is None else self.hours

    @property
    def unit(self) -> str:
        """What curves are over."""
        return "round" if self.hours is None else "hour"


class Contest(NamedTuple):
    """A suite that was computed."""

    about: Mapping[str, Any]
    cells: list[Cell]
    full: Mapping[str, Entry]  # the reference of each task
    timed: Sequence[Cell] = ()  # those with a clock, whose rules are others; they are `cells` if there are no more


def read(out: Path) -> Contest:
    """The contest in a folder."""
    path = out / RECORD
    require(path.exists(), f"{out} holds no finished contest; `fedstale arena run --resume` goes on with it")
    record = read_json(path)
    cells = [_cell(cell, out / "runs") for cell in record["cells"]]
    about = {key: value for key, value in record.items() if key != "cells"}
    full = {cell.task: cell.entries[FULL] for cell in cells if cell.participation == FULL}
    plain, timed = (
        [c for c in cells if c.participation != FULL and bool(c.hours) == with_] for with_ in (False, True)
    )
    return Contest(about, plain or timed, full, timed if plain else ())


def _cell(record: Mapping[str, Any], store: Path) -> Cell:
    entries = {label: _entry(record, rule, store) for label, rule in record["rules"].items()}
    about = {key: value for key, value in record.items() if key != "rules"}
    return Cell(**about, entries=entries)


def _entry(cell: Mapping[str, Any], rule: Mapping[str, Any], store: Path) -> Entry:
    folders = [RunFolder(store / name) for name in rule["runs"]]
    done = [folder for folder in folders if learned(folder)]
    scores = [_scores(folder) if folder in done else NOTHING for folder in folders]
    names = dict.fromkeys(name for of in scores for name in of)
    lines = [folder.metrics() for folder in done]
    return Entry(
        rule["rate"], rule["server"], rule["edge"], rule["tuning_runs"],
        {name: np.array([of.get(name, NOTHING.get(name, np.nan)) for of in scores]) for name in names},
        {n: _curve(lines, n, cell.get("hours")) for n in (OBJECTIVE, ACCURACY) if lines and n in lines[0][-1]},
        _costs(cell, rule["units"], lines), len(folders) - len(done),
    )  # fmt: skip


def learned(run: RunFolder) -> bool:
    """Whether a run is finished with an objective that is a number, and most of its updates were used."""
    if not run.finished:
        return False
    result = run.result()
    used = sum(line["participants"] for line in run.metrics()) if result["refused"] else 1
    few = result["refused"] > MOSTLY * (used + result["refused"])
    return not few and math.isfinite(result[OBJECTIVE]["last10"])


def _scores(run: RunFolder) -> dict[str, float]:
    """Of a run: metrics in the last 10 rounds and over all rounds, and the worst-served tenth of the clients."""
    found, result, lines = dict[str, float](), run.result(), run.metrics()
    for name in (OBJECTIVE, ACCURACY, f"own_{OBJECTIVE}", f"own_{ACCURACY}"):
        if name in result:
            found[name] = result[name]["last10"]
            found[f"{name}_over_time"] = float(np.mean([line[name] for line in lines if name in line]))
    served = np.sort([value for value in run.clients().get(ACCURACY, []) if value is not None])
    if len(served):
        found[WORST] = float(served[: tenth(len(served))].mean())
    return found


def _curve(lines: Sequence[Sequence[query.Line]], name: str, hours: float | None) -> Curve:
    if hours is not None:
        at, values = query.over_time(lines, name, POINTS, 3600 * hours)
        return Curve([float(s / 3600) for s in at], [float(v) for v in values.mean(axis=0)])
    rounds, values = query.curve(lines, name)
    kept = thinned(len(rounds), POINTS)
    return Curve([rounds[k] for k in kept], [float(values[:, k].mean()) for k in kept])


def _costs(
    cell: Mapping[str, Any], units: Mapping[str, Any], lines: Sequence[Sequence[query.Line]]
) -> dict[str, float]:
    """In sizes of the model: memory, and messages of a round; and the operations of all clients of a round."""
    model = FLOAT * cell["dimension"]
    heard, there = (
        float(np.mean([line[key] for run in lines for line in run])) if lines else np.nan
        for key in ("participants", "available")
    )
    busy, look = cell["clients"] if units["unheard"] else heard, units.get("look") or 0
    return {
        "server_memory": units["server_bytes"] / model, "client_state": units["client_bytes"] / model,
        "up": units["up"] * heard / model, "down": (units["down"] * heard + units["asked"] * there) / model,
        "mflop": np.nan if units["flops"] is None else (units["flops"] * busy + look * (there - heard)) / 1e6,
    }  # fmt: skip

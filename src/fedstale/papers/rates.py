"""The rates that are chosen for a figure, and the rows behind it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core import HasClusters, WarmsUp
from fedstale.experiments.plan import Planned, by_label, plan
from fedstale.papers.figure import Cell, Choice, Figure
from fedstale.runs import metrics, store
from fedstale.runs.query import training_objective
from fedstale.runs.statistics import spread, thinned
from fedstale.simulate import warmed_up

Row = dict[str, Any]


def planned(cell: Cell, folder: Path) -> dict[str, list[Planned]]:
    """The runs of every entry, in the order of the seeds."""
    return by_label(plan(cell.experiment, folder))


def chosen(cell: Cell, objectives: Mapping[str, float]) -> list[Choice]:
    """For every algorithm the choice of least training objective; of equals, the first."""
    names = dict.fromkeys(c.algorithm for c in cell.choices)
    return [
        min((c for c in cell.choices if c.algorithm == name), key=lambda c: objectives[c.label]) for name in names
    ]


def rows(figure: Figure, found: Sequence[Cell], folder: Path) -> tuple[list[Row], list[Row]]:
    """What is behind the figure, a row for every run that was chosen; and how the choice was made."""
    results, tuning = [], []
    for cell in found:
        runs = planned(cell, folder)
        objectives = {
            label: training_objective(p.folder.result() if p.folder.finished else None for p in group)
            for label, group in runs.items()
        }
        best = chosen(cell, objectives)
        where = place(cell)
        for c in cell.choices:
            is_best = {"chosen": c in best}
            tuning.append(
                where | {"algorithm": c.algorithm} | c.tuned | {"training_objective": objectives[c.label]} | is_best
            )
        for c in best:
            for p in runs[c.label]:
                what: Row = {"algorithm": c.algorithm} | c.settings | c.tuned
                what |= {"seed": p.seed, "rounds": cell.experiment.rounds}
                found_out = values(p.folder, figure.about.get("at", [])) | beliefs(p) | left_out(p)
                results.append(where | what | found_out | {"run": p.folder.path.name})
    return results, tuning


def place(cell: Cell) -> Row:
    """The panel and the grid's values, under the name of the setting, without its section where that is clear."""
    row = {"panel": cell.panel} if cell.panel else {}
    for keys, value in cell.point.items():
        key = keys.split(",")[0]
        name = key.split(".", 1)[-1]
        row[key if name in ("seed", "rounds", "algorithm", "panel") else name] = value
    return row


def values(run: store.RunFolder, at: Sequence[int]) -> Row:
    """Of each evaluated number: at the end, mean and deviation of the last 10, mean over the run, at rounds."""
    if not run.finished:
        return {"diverged": True}
    lines, row = run.metrics(), dict[str, Any]({"diverged": False})
    for name in (n for n in lines[-1] if metrics.shown([n]) or "_exit_" in n):
        known_at = {line["round"]: line[name] for line in lines if name in line}
        if not known_at:
            continue
        series = np.array(list(known_at.values()))
        row |= {f"{name}_final": series[-1], f"{name}_last10": series[-10:].mean()}
        row |= {f"{name}_mean": series.mean(), f"{name}_swing": series[-10:].std()}
        for t in at:
            near = min(known_at, key=lambda k: abs(k - t))
            row[f"{name}_at_{t}"] = known_at[near]
    return {key: float(f"{value:.8g}") if isinstance(value, float) else value for key, value in row.items()}


def beliefs(p: Planned) -> Row:
    """How wrong an estimator with warm-up rounds is about π_i and λ_i at the start, mean over clients."""
    asked = p.algorithm.estimator
    if not isinstance(asked, WarmsUp) or asked.warmup_rounds == 0:
        return {}
    n: int = p.config["data"]["clients"]
    estimator: Any = warmed_up(asked, p.participation, n, p.seed)
    truth: Any = p.participation
    belief = estimator.init(n)
    pairs = {
        "probs": truth.probs(n) - estimator.probs(belief),
        "mixing": truth.mixing(n) - estimator.mixing(belief),
    }
    return {f"{name}_error": float(f"{np.abs(error).mean():.6g}") for name, error in pairs.items()}


def left_out(p: Planned) -> Row:
    """Of the clients of each cluster that were there, the share that the rule left out; None if none ever was."""
    if not isinstance(p.participation, HasClusters) or not p.folder.finished:
        return {}
    clusters = p.participation.clusters
    n, spared, there = p.config["data"]["clients"], np.zeros(clusters), np.zeros(clusters)
    for line in p.folder.metrics():
        out = np.array(line.get("spared", []), np.int64)
        spared += np.bincount(out * clusters // n, minlength=clusters)
        there += np.bincount(np.append(out, line["heard"]).astype(np.int64) * clusters // n, minlength=clusters)
    return {f"left_out_{c}": round(spared[c] / there[c], 4) if there[c] else None for c in range(clusters)}


def curves(results: Sequence[Row], folder: Path, points: int = 60) -> list[Row]:
    """Mean and deviation over seeds of every evaluated number, thinned to about so many rounds."""
    groups: dict[str, list[Row]] = {}
    for row in results:
        key = {k: row[k] for k in row if k in ("panel", "algorithm") or k in _grid_keys(row)}
        groups.setdefault(repr(key), []).append(row | {"key": key})
    out = []
    for group in groups.values():
        runs = [store.RunFolder(folder / row["run"]).metrics() for row in group if not row["diverged"]]
        if not runs:
            continue
        for name in (m.name for m in metrics.shown(runs[0][-1])):
            rounds = [line["round"] for line in runs[0] if name in line]
            mean, std, _ = spread([[line[name] for line in run if name in line] for run in runs])
            out += [
                group[0]["key"]
                | {"metric": name, "round": rounds[k], "mean": f"{mean[k]:.6g}", "std": f"{std[k]:.3g}"}
                for k in thinned(len(rounds), points)
            ]
    return out


def _grid_keys(row: Row) -> list[str]:
    """The columns before `algorithm` are those of the cell."""
    names = list(row)
    return names[: names.index("algorithm")]

"""The runs behind a figure: which rates were chosen, and what the chosen runs measured."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Floats, HasClusters, WarmsUp, hooks_of
from fedstale.lab.plan import Cell, Choice, Planned, by_label, chosen, place, scores
from fedstale.lab.runs import metrics, query
from fedstale.lab.runs.statistics import spread, thinned
from fedstale.lab.runs.store import RunFolder
from fedstale.lab.spec import Table
from fedstale.simulate import warmed_up


class Row(NamedTuple):
    """A chosen run: the cell it belongs to, the algorithm at its tuned settings, and what was measured."""

    place: Table  # panel and grid settings: the cell
    algorithm: str
    settings: Table  # numbers of the algorithm's own entry: beta, kappa2, …
    tuned: Table  # the settings that were chosen
    seed: int
    rounds: int
    diverged: bool
    values: Table  # measured numbers by column name
    run: RunFolder

    def columns(self) -> Table:
        """The row of a CSV file."""
        about = {"algorithm": self.algorithm} | self.settings | self.tuned | {"seed": self.seed}
        end = {"rounds": self.rounds, "diverged": self.diverged} | self.values | {"run": self.run.path.name}
        return self.place | about | end


def rows(planned: Sequence[Cell], at: Sequence[int]) -> tuple[list[Row], list[Table]]:
    """A row for every chosen run, with its values at the rounds `at`; and a table of how rates were chosen."""
    results, tuning = [], []
    for cell in planned:
        groups, where, tuned = by_label(cell.runs), place(cell), cell.tuning or cell
        objectives = scores(tuned)
        best = chosen(tuned, objectives)
        for c in tuned.choices:
            verdict = {"training_objective": objectives[c.label], "chosen": c in best}
            tuning.append(where | {"algorithm": c.algorithm} | c.tuned | verdict)
        results += [row(where, c, p, at) for c in chosen(cell, scores(cell)) for p in groups[c.label]]
    return results, tuning


def row(where: Table, c: Choice, p: Planned, at: Sequence[int]) -> Row:
    """The row of one run."""
    values = measured(p.folder, at) if p.folder.finished else {}
    values |= estimation_errors(p) | included(p) | left_out(p)
    rounds = p.config["rounds"]
    return Row(where, c.algorithm, c.settings, c.tuned, p.seed, rounds, not p.folder.finished, values, p.folder)


def measured(run: RunFolder, at: Sequence[int]) -> Table:
    """Of each evaluated number: at the end, mean and deviation of the last 10, mean over the run, at rounds `at`
    and the mean over these (`accuracy_at`), which are the evaluated ones next to those asked for.
    """
    lines, found = run.metrics(), dict[str, Any]()
    for name in (n for n in lines[-1] if metrics.shown([n]) or "_exit_" in n):
        known_at = {line["round"]: line[name] for line in lines if name in line}
        series = np.array(list(known_at.values()))
        found |= {f"{name}_final": series[-1], f"{name}_last10": series[-10:].mean()}
        found |= {f"{name}_mean": series.mean(), f"{name}_swing": series[-10:].std()}
        then = {f"{name}_at_{t}": known_at[min(known_at, key=lambda k: abs(k - t))] for t in at}
        found |= then | ({f"{name}_at": np.mean([*then.values()])} if then else {})
    return {key: float(f"{value:.8g}") for key, value in found.items()}


def estimation_errors(p: Planned) -> Table:
    """How wrong an estimator with warm-up rounds is about π_i and λ_i at the start, mean over clients."""
    asked = p.algorithm.estimator
    if not isinstance(asked, WarmsUp) or asked.warmup_rounds == 0:
        return {}
    n: int = p.config["data"]["clients"]
    estimator: Any = warmed_up(asked, p.participation, n, p.seed)
    truth: Any = p.participation
    belief = estimator.init(n)
    errors = truth.probs(n) - estimator.probs(belief), truth.mixing(n) - estimator.mixing(belief)
    pairs = zip(("probs", "mixing"), errors, strict=True)
    return {f"{name}_error": float(f"{np.abs(error).mean():.6g}") for name, error in pairs}


def included(p: Planned) -> Table:
    """How many clients were available in a round and how many of them a strategy that selects took, on average."""
    if hooks_of(p.algorithm.strategy).select is None or not p.folder.finished:
        return {}
    counts = np.array([(line["available"], line["participants"]) for line in p.folder.metrics()])
    return dict(zip(("available_mean", "included_mean"), counts.mean(axis=0).round(4).tolist(), strict=True))


def left_out(p: Planned) -> Table:
    """Of each cluster's available clients the share that was not selected; None if none was ever available.

    `excluded_C` counts all clients of cluster C in all rounds, the absent ones too.
    """
    if not isinstance(p.participation, HasClusters) or not p.folder.finished:
        return {}
    clusters, n, lines = p.participation.clusters, p.config["data"]["clients"], list(p.folder.metrics())

    def counted(*keys: str) -> Floats:
        """(clusters,) how often their clients occur in these lists of all rounds."""
        listed = np.array([i for line in lines for key in keys for i in line.get(key, [])], np.int64)
        return np.bincount(listed * clusters // n, minlength=clusters).astype(np.float64)

    out, available = counted("not_selected"), counted("not_selected", "heard")
    found = {f"left_out_{c}": round(out[c] / available[c], 4) if available[c] else None for c in range(clusters)}
    if any("excluded" in line for line in lines):
        shares = counted("excluded") * clusters / (n * len(lines))
        found |= {f"excluded_{c}": round(float(shares[c]), 4) for c in range(clusters)}
    return found


def curves(results: Sequence[Row], points: int = 60) -> list[Table]:
    """Mean and standard deviation over seeds of every shown metric, at no more than `points` rounds."""
    out: list[Table] = []
    for group in query.grouped(results, lambda r: repr((r.place, r.algorithm))).values():
        runs = [r.run.metrics() for r in group if not r.diverged]
        key = group[0].place | {"algorithm": group[0].algorithm}
        for name in (m.name for m in (metrics.shown(runs[0][-1]) if runs else [])):
            rounds, values = query.curve(runs, name)
            mean, std, _ = spread(values)
            out += [
                key | {"metric": name, "round": rounds[k], "mean": f"{mean[k]:.6g}", "std": f"{std[k]:.3g}"}
                for k in thinned(len(rounds), points)
            ]
    return out

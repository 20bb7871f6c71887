"""The numbers behind the plots: the metrics of a setting, read once, as arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import BadInput, Floats, require
from fedstale.report.style import POINTS
from fedstale.runs.query import Group, Run

Line = dict[str, Any]  # of a run's metrics
NAMES = {
    "accuracy": "test accuracy",
    "objective": "training objective",
    "distance": "distance to the optimum",
    "beta": "β",
}


class Lines(NamedTuple):
    """A group with the metrics of its finished runs."""

    group: Group
    seeds: list[list[Line]]


class Series(NamedTuple):
    """One number of a group over the rounds, thinned."""

    label: str
    rounds: list[int]
    mean: Floats
    std: Floats | None  # none with one seed
    whole: int  # how many rounds there were before thinning


def read(groups: Sequence[Group]) -> list[Lines]:
    return [Lines(g, [_metrics(r) for r in g.runs]) for g in groups if g.runs]


def _metrics(run: Run) -> list[Line]:
    try:
        lines = run.folder.metrics()
    except ValueError as error:
        raise BadInput(f"{run.folder.path}/metrics.jsonl is damaged: {error}") from None
    require(len(lines) > 0, f"{run.folder.path} has a result but no metrics; compute it again with --again")
    return lines


def series(lines: Lines, name: str) -> Series | None:
    """Mean and standard deviation over the seeds, in the rounds in which all of them have the number."""
    seeds = [{line["round"]: line[name] for line in run if line.get(name) is not None} for run in lines.seeds]
    rounds = sorted(set.intersection(*(set(s) for s in seeds)))
    if not rounds:
        return None
    kept = [rounds[k] for k in thinned(len(rounds), POINTS)]
    values = np.array([[s[t] for t in kept] for s in seeds], np.float64)
    std = values.std(axis=0, ddof=1) if len(seeds) > 1 else None
    return Series(lines.group.label, kept, values.mean(axis=0), std, len(rounds))


def thinned(count: int, most: int) -> list[int]:
    """At most so many of 0 … count - 1, evenly spaced, both ends among them."""
    return (
        list(range(count))
        if count <= most
        else np.unique(np.linspace(0, count - 1, most).round()).astype(int).tolist()
    )


def per_client(lines: Lines, name: str) -> Floats | None:
    """(n,) mean over seeds of what the final parameters do for each client; nan where nobody knows."""
    found = [np.array(r.folder.clients().get(name, []), np.float64) for r in lines.group.runs]
    if not found or any(len(f) == 0 or len(f) != len(found[0]) for f in found):
        return None
    return mean_known(np.array(found))


def mean_known(values: Floats) -> Floats:
    """Mean over the first axis of what is not nan."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    out: Floats = np.divide(sums, count, out=np.full(values.shape[1:], np.nan), where=count > 0)
    return out


def weights(lines: Lines) -> Floats | None:
    """(n,) the realised weight of each client over the whole run, mean over seeds."""
    last = [next((line["weights"] for line in reversed(run) if "weights" in line), None) for run in lines.seeds]
    if not last or any(w is None for w in last):
        return None
    return np.asarray(np.mean(np.array(last, np.float64), axis=0))


def clients(lines: Lines) -> int:
    """How many clients there are: what the data say, or the metrics where they know more."""
    seen = (max([*line.get("heard", ()), *line.get("spared", ())], default=-1) + 1 for line in lines.seeds[0])
    traced = weights(lines)
    told = lines.group.config.get("data", {}).get("clients", 0)
    return max(int(told) if traced is None else len(traced), max(seen, default=0))


def shares(lines: Lines) -> Floats | None:
    """(n,) share of the rounds in which each client was heard from, over all seeds."""
    if not all("heard" in line for run in lines.seeds for line in run):
        return None
    counts, rounds = np.zeros(clients(lines)), 0
    for run in lines.seeds:
        rounds += len(run)
        for line in run:
            counts[line["heard"]] += 1
    return counts / max(rounds, 1)


def told(value: float | None, name: str = "accuracy") -> str:
    """`93.41 %` of an accuracy, three or four digits of anything else."""
    if value is None or not np.isfinite(value):
        return "–"
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4g}"


def spread(values: Sequence[float], name: str = "accuracy") -> str:
    """Mean ± standard deviation over seeds; the mean alone where there is one seed."""
    if not len(values):
        return "–"
    mean = float(np.mean(values))
    if len(values) == 1:
        return told(mean, name)
    std = float(np.std(values, ddof=1))
    return f"{100 * mean:.2f} ± {100 * std:.2f} %" if name == "accuracy" else f"{mean:.4g} ± {std:.1g}"

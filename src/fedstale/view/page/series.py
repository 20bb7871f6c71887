"""The numbers behind the plots: the metrics of a setting, read once, as arrays."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedstale.core import Floats
from fedstale.lab.runs import query
from fedstale.lab.runs.query import HEARD, Group, Line
from fedstale.lab.runs.statistics import Spread, spread, thinned

AXES = {"hours": "seconds", "bytes": "bytes_up"}  # what curves may be over, and the key of a line that says it
POINTS = 500  # of a curve; a longer one is thinned


class Lines(NamedTuple):
    """A group with the metrics of its finished runs."""

    group: Group
    seeds: list[list[Line]]


class Series(NamedTuple):
    """One number of a group over the rounds, or hours, thinned."""

    label: str
    rounds: Sequence[float]
    values: Spread  # over the seeds, of each round
    whole: int  # how many rounds there were before thinning
    least: Floats | float = -np.inf  # of the seeds, in each round


def read(groups: Sequence[Group]) -> list[Lines]:
    """The groups with their metrics, without runs whose metrics are damaged, which a warning names."""
    read = [(g, {r.seed: lines for r in g.runs if (lines := query.readable(r.folder))}) for g in groups]
    return [Lines(g._replace(runs=[r for r in g.runs if r.seed in of]), list(of.values())) for g, of in read if of]


def series(lines: Lines, name: str) -> Series | None:
    """Mean and standard deviation over the seeds, in the rounds in which all of them have the number."""
    rounds, values = query.curve(lines.seeds, name)
    kept = thinned(len(rounds), POINTS)
    found = Series(lines.group.label, [rounds[k] for k in kept], spread(values[:, kept]), len(rounds),
                   values[:, kept].min(axis=0))  # fmt: skip
    return found if rounds else None


def scale(lines: Lines, x: str) -> Callable[[Sequence[int]], Floats] | None:
    """From rounds to simulated hours, or to bytes sent, mean over the seeds; None where they were not recorded."""
    of = {"hours": _hours, "bytes": _bytes}[x]
    if not lines.seeds or not all(seed and AXES[x] in seed[-1] for seed in lines.seeds):
        return None
    known = [([0, *(line["round"] for line in seed)], [0.0, *of(seed)]) for seed in lines.seeds]
    return lambda rounds: np.mean([np.interp(rounds, *pair) for pair in known], axis=0)


def _hours(seed: Sequence[Line]) -> list[float]:
    return [line["seconds"] / 3600 for line in seed]


def _bytes(seed: Sequence[Line]) -> list[float]:
    return [float(b) for b in np.cumsum([line["bytes_up"] + line["bytes_down"] for line in seed])]


def per_client(lines: Lines, name: str) -> Floats | None:
    """(n,) mean over seeds of what the final parameters do for each client; nan where nobody knows."""
    found = [np.array(query.client_values(r.folder).get(name, []), np.float64) for r in lines.group.runs]
    if not found or any(len(f) == 0 or len(f) != len(found[0]) for f in found):
        return None
    return np.asarray(np.ma.masked_invalid(found).mean(axis=0).filled(np.nan))


def names(lines: Lines, n: int) -> list[str]:
    """Of each of n clients its own name, or `client 7`."""
    own = lines.group.all[0].folder.clients().get("name", [])
    return [str(name) for name in own] if len(own) == n else [f"client {i}" for i in range(n)]


def weights(lines: Lines) -> Floats | None:
    """(n,) the realised weight of each client over the whole run, mean over seeds."""
    last = [[line["weights"] for line in run if "weights" in line][-1:] for run in lines.seeds]
    return np.asarray(spread(last).mean[0]) if all(last) else None


def shares(lines: Lines) -> Floats | None:
    """(n,) share of the rounds in which each client was heard from, over all seeds."""
    if not all(query.names_clients(run) for run in lines.seeds):
        return None
    config = lines.group.config
    states = np.concatenate([query.presence(config, run) for run in lines.seeds], axis=1)
    return np.asarray((states == HEARD).mean(axis=1))


def absences(lines: Lines) -> dict[str, Floats] | None:
    """(n,) mean and longest number of rounds since each client was last heard from, over all seeds."""
    if not all(query.names_clients(run) for run in lines.seeds):
        return None
    found = [query.ages(query.presence(lines.group.config, run)) for run in lines.seeds]
    mean, most = np.mean([x.mean(axis=1) for x in found], axis=0), np.max([x.max(axis=1) for x in found], axis=0)
    return {"mean": mean, "longest": most}

"""How soon runs reach a value of a metric: in rounds, hours and megabytes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedstale.lab.runs import metrics
from fedstale.lab.runs.metrics import Metric
from fedstale.lab.runs.query import Line
from fedstale.lab.runs.statistics import spread

BASELINE = "fedavg"  # whose end is the target where none is given; else that of the first algorithm


class Target(NamedTuple):
    """A value that is to be reached, and where it comes from."""

    metric: Metric
    value: float
    origin: str = ""  # in words; empty: the experiment's own

    @property
    def text(self) -> str:
        """`90.00 %, where fedavg ends`."""
        return ", ".join(filter(None, (self.metric.text(self.value), self.origin)))


class When(NamedTuple):
    """Rounds, hours or megabytes to the target: mean and standard deviation over the seeds that reach it."""

    mean: float | None  # None: no seed does
    std: float
    reached: int
    seeds: int

    @property
    def text(self) -> str:
        """`120 ± 8`, `120 (2 of 3 seeds)`, or `never`."""
        if self.mean is None:
            return "never"
        if self.reached < self.seeds:
            return f"{self.mean:.3g} ({self.reached} of {self.seeds} seeds)"
        return f"{self.mean:.3g}" + (f" ± {self.std:.2g}" if self.seeds > 1 else "")


class Reached(NamedTuple):
    """When the target was reached."""

    rounds: When
    megabytes: When  # sent both ways until then
    hours: When | None  # of runs with a clock


def target(config: Mapping[str, Any], runs: Mapping[str, Sequence[Sequence[Line]]]) -> Target | None:
    """The target of an experiment; without one, where plain averaging ended in the mean of the last 10 rounds.

    `runs` has the metrics of each seed, by the label of the algorithm.
    """
    lasts = [lines[-1] for seeds in runs.values() for lines in seeds]
    if not lasts:
        return None
    if config.get("target") is not None:
        name = next(filter(None, (metrics.monitored(last, config) for last in lasts)), "")
        return Target(metrics.metric(name), config["target"]) if name else None
    found = metrics.shown(*lasts, main=config.get("main"))
    if len(runs) < 2 or not found:
        return None
    label, m = next((x for x in runs if x.lower() == BASELINE), next(iter(runs))), found[0]
    end = np.mean([np.mean([x[m.name] for x in lines[-10:] if m.name in x]) for lines in runs[label]])
    return Target(m, float(end), f"where {label} ends") if math.isfinite(end) else None


def reached(seeds: Sequence[Sequence[Line]], t: Target) -> Reached:
    """When the seeds have the target in an evaluated round for the first time."""
    name, least = t.metric.name, t.metric.score(t.value)

    def there(line: Line) -> bool:
        return name in line and t.metric.score(line[name]) >= least

    ends = [(lines, next((k for k, line in enumerate(lines, 1) if there(line)), 0)) for lines in seeds]
    until = [lines[:k] for lines, k in ends if k]
    sent = [sum(x.get("bytes_up", 0) + x.get("bytes_down", 0) for x in lines) / 1e6 for lines in until]
    timed = all("seconds" in lines[-1] for lines in seeds)
    hours = _when([lines[-1]["seconds"] / 3600 for lines in until], len(seeds)) if timed else None
    return Reached(_when([lines[-1]["round"] for lines in until], len(seeds)), _when(sent, len(seeds)), hours)


def _when(values: Sequence[float], seeds: int) -> When:
    mean, std, reached = spread(values) if values else (None, 0.0, 0)
    return When(mean, std, reached, seeds)


def took(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Megabytes of runs and, with a clock, hours to the end or to the target that stopped them, and costs."""
    if not results or not all("bytes_up" in result for result in results):
        return {}
    told = {"megabytes": spread([(result["bytes_up"] + result["bytes_down"]) / 1e6 for result in results]).mean}
    if not all("clock" in result for result in results):
        return told
    clocks = [result["clock"] for result in results]
    means = {key: spread([c[key] for c in clocks]).mean for key in ("idle", "lost_work")}
    means["never_heard"] = max(c["never_heard"] for c in clocks)
    hours, stopped = spread([c["seconds"] / 3600 for c in clocks]).mean, sum("stopped" in r for r in results)
    return told | {"stopped": stopped, "hours": hours} | means

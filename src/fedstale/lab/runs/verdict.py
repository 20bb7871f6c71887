"""What a comparison shows: who is left behind, who cannot be told apart, and how soon a value is reached."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import BadInput
from fedstale.lab.runs import metrics, query
from fedstale.lab.runs.metrics import OBJECTIVE, Metric, metric, percent, plain
from fedstale.lab.runs.query import HEARD, Group, Line
from fedstale.lab.runs.statistics import paired_test, spread
from fedstale.lab.runs.store import RunFolder

BASELINE = "fedavg"  # whose end is the target where none is given; else that of the first algorithm
LEAST = 0.01  # of a share, or of the better score: a smaller gap between algorithms is not worth a sentence
UNEVEN = 0.5  # the rare half comes at most so much as often as the other one, or there are no halves to speak of


class Halves(NamedTuple):
    """Mean final score of the clients that were heard from often, and of the rare half, and which score it is."""

    often: float
    rare: float
    by: Metric = metric("accuracy")


def compared_by(names: Collection[str], values: Mapping[str, Any], main: str | None) -> Metric | None:
    """The score that clients are compared by, of those evaluated: the main one if each has it, or the test loss."""
    wanted = [*(m for m in metrics.shown(names, main=main) if m.name != OBJECTIVE), metric("loss")]
    return next((m for m in wanted if np.isfinite(np.array(values.get(m.name, []), np.float64)).any()), None)


def halves(runs: Sequence[tuple[RunFolder, Sequence[Line]]]) -> Halves | None:
    """Mean over these runs, each with its metrics; None where clients come about equally often or have no score."""
    found = [one for folder, lines in runs if (one := _of_run(folder, lines))]
    if not found or len(found) < len(runs):
        return None
    return Halves(float(np.mean([h.often for h in found])), float(np.mean([h.rare for h in found])), found[0].by)


def _of_run(folder: RunFolder, lines: Sequence[Line]) -> Halves | None:
    try:
        values, named = folder.clients(), query.names_clients(lines)
        by = compared_by(lines[-1], values, folder.config().get("main"))
        scores = np.array(values[by.name] if by else [], np.float64)
        share = (query.presence(folder.config(), lines) == HEARD).mean(axis=1) if named else None
    except (BadInput, ValueError, IndexError):  # what is damaged is not drawn
        return None
    if share is None or by is None or len(scores) != len(share) or len(scores) < 2:
        return None
    order = np.argsort(share, kind="stable")
    rare, often = order[: len(order) // 2], order[(len(order) + 1) // 2 :]
    known = np.isfinite(scores[rare]).any() and np.isfinite(scores[often]).any()
    if not known or share[rare].mean() > UNEVEN * share[often].mean():
        return None
    return Halves(float(np.nanmean(scores[often])), float(np.nanmean(scores[rare])), by)


def behind(g: Group, best: Group, m: Metric, which: str = "last10") -> bool:
    """Whether a paired test over the common seeds finds the group worse than the best one."""
    ours, theirs = (
        {r.seed: m.score(float(r.result[m.name][which])) for r in x.runs if r.result} for x in (g, best)
    )
    common = sorted(ours.keys() & theirs.keys())
    return len(common) > 1 and paired_test(np.array([ours[s] - theirs[s] for s in common])) < 0


def leading(done: Sequence[Group], m: Metric, which: str = "last10") -> list[int]:
    """The places of the best mean, first, and of those that paired tests cannot tell from it."""
    means = [spread(g.values(m.name, which)).mean for g in done]
    if not means or not all(map(math.isfinite, means)):
        return []
    top = means.index(m.best(means))
    return [top, *(k for k, g in enumerate(done) if k != top and not behind(g, done[top], m, which))]


def compared(done: Sequence[Group]) -> list[Metric]:
    """The metrics that all of them have; the first is the one that they are compared by."""
    main = done[0].config.get("main") if done else None
    return metrics.shown(*(g.runs[0].result or {} for g in done), main=main)


def verdict(groups: Sequence[Group], served: Mapping[str, Halves | None], rare: int) -> str:
    """Who is left behind, where `served` says by label how well the `rare` clients fare, and who is best."""
    done = [g for g in groups if g.runs]
    found = compared(done)
    if len(done) < 2 or not found:
        return ""
    return " ".join(filter(None, (left_behind(served, rare), best(done, found[0]))))


def left_behind(served: Mapping[str, Halves | None], rare: int) -> str:
    """`fedavg leaves the 12 clients that come rarely 15 points behind auto (82 % and 97 % test accuracy).`"""
    known = {label: h for label, h in served.items() if h}
    kinds = {h.by for h in known.values()}
    if len(known) < 2 or len(kinds) > 1:
        return ""
    m = kinds.pop()
    scores = {label: m.score(h.rare) for label, h in known.items()}
    low, high = min(scores, key=scores.__getitem__), max(scores, key=scores.__getitem__)
    gap = scores[high] - scores[low]
    worst, most = (percent(v, 0) if m.percent else plain(v, 3) for v in (known[low].rare, known[high].rare))
    if gap <= LEAST * (1 if m.percent else abs(scores[high])):
        of = "" if m.percent else f" {m.label}"
        return f"The {rare} clients that come rarely fare alike with all algorithms, at about {most}{of}."
    points = f"{100 * gap:.0f} point{'s' * (round(100 * gap) != 1)}" if m.percent else plain(gap, 3)
    return (
        f"{low} leaves the {rare} clients that come rarely {points} behind {high} ({worst} and {most} {m.label})."
    )


def best(done: Sequence[Group], m: Metric) -> str:
    """`auto and mifa cannot be told apart by test accuracy after 400 rounds; fedavg is behind.`"""
    near, seeds = leading(done, m), min(len(g.runs) for g in done)
    if not near:
        return ""
    played = {int((r.result or {}).get("rounds", r.config["rounds"])) for g in done for r in g.runs}
    after = f"after {max(played)} rounds"
    if len(played) > 1:
        after = f"where each stopped, after at most {max(played)} rounds"
    labels = [done[k].label for k in near]
    if seeds < 2:
        return f"{labels[0]} ends with the best {m.label} {after}, but with one seed that may be chance: add seeds."
    others = [g.label for k, g in enumerate(done) if k not in near]
    if len(near) > 1:
        told = f"; {joined(others)} {'is' if len(others) == 1 else 'are'} behind" if others else ""
        return f"{joined(labels)} cannot be told apart by {m.label} {after} and {seeds} seeds{told}."
    value = m.text(spread(done[near[0]].values(m.name, "last10")).mean)
    return f"{labels[0]} has the best {m.label} {after}, {value}, beyond chance over {seeds} seeds."


def joined(names: Sequence[str]) -> str:
    """`auto, mifa and fedstale`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


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
        return Target(metric(name), config["target"]) if name else None
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

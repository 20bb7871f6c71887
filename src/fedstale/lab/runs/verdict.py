"""What a comparison shows in a sentence or two: who is left behind, and which algorithms cannot be told apart."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedstale.lab.runs import metrics
from fedstale.lab.runs.halves import Halves
from fedstale.lab.runs.metrics import Metric, plain
from fedstale.lab.runs.query import Group
from fedstale.lab.runs.statistics import paired_test, spread

LEAST = 0.01  # of a share, or of the better score: a smaller gap between algorithms is not worth a sentence


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
    worst, most = (f"{v:.0%}" if m.percent else plain(v, 3) for v in (known[low].rare, known[high].rare))
    if gap < LEAST * (1 if m.percent else abs(scores[high])):
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
    after = f"after {done[near[0]].config['rounds']} rounds"
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

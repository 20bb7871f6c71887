"""Standings of rules over cells, with their uncertainty.

The score of a rule in a cell is the progress that it misses: (objective - best) / (start - best), where the
objective is that of training in the last 10 rounds, `best` that of the best rule of the cell, and `start` that
before the first round. 0 is the best rule, 1 is a rule that learns nothing or diverges. Intervals are a bootstrap
over cells and seeds at once. A pair of rules is tested by the mean difference over the cells of each seed, with
Holm's correction over all pairs.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedstale.core import Floats
from fedstale.core.rng import stream
from fedstale.lab.arena.records import ACCURACY, WORST, Cell, Entry
from fedstale.lab.runs.metrics import OBJECTIVE
from fedstale.lab.runs.statistics import holm, p_value

DRAWS = 1000  # of the bootstrap
NEAR = 0.02  # of the progress of the best rule of a cell
ENDS = (5, 95)  # percent: a 90 % interval
CHANCE = 0.05  # of any wrong difference among all pairs
PLAIN = "fedavg"  # the rule whose end others are timed by


class Interval(NamedTuple):
    """A mean and its 90 % interval."""

    mean: float
    low: float
    high: float


UNKNOWN = Interval(math.nan, math.nan, math.nan)


class Standing(NamedTuple):
    """A rule over some cells."""

    rule: str
    missing: Interval  # the share of the best rule's progress that it misses
    worst_cell: str
    worst_missing: float  # in that cell
    near: float  # share of the cells in which it misses at most 2 points
    rank: Interval  # mean rank, 1 is the best
    behind: Interval  # test accuracy below that of the best rule by accuracy
    reached: float  # share of the rounds to where FedAvg ends, median over the cells; nan: not in most
    reaches: int  # cells in which it gets there
    behind_full: float  # the share of the progress with every client in every round that it misses
    accuracy: float
    accuracy_over_time: float
    worst_decile: float  # accuracy of the worst-served tenth of the clients
    leading: bool  # not worse than the first beyond chance
    diverged: int
    edges: int  # cells in which the rate was the least or the largest that was tried
    costs: Mapping[str, float]  # means over the cells


class Pair(NamedTuple):
    """Two rules: how much more progress the first misses, and the corrected chance of seeing that by luck."""

    first: str
    second: str
    more: float
    p: float


def missing(cells: Sequence[Cell], rules: Sequence[str]) -> Floats:
    """(rules, cells, seeds) the share of the best rule's progress that is missing; at most 1."""
    table = _objectives(cells, rules)
    return _missing(table, table.mean(axis=2).min(axis=0), cells)


def _objectives(cells: Sequence[Cell], rules: Sequence[str]) -> Floats:
    """(rules, cells, seeds); one above the start, or none at all, counts as the start."""
    start = np.array([c.start for c in cells])
    return np.asarray(np.minimum(_table(cells, rules, OBJECTIVE, math.inf), start[:, None]))


def _missing(table: Floats, best: Floats, cells: Sequence[Cell]) -> Floats:
    start = np.array([c.start for c in cells])
    scale = np.maximum(start - best, 1e-12)  # (cells,) where nobody learns, all but the best miss 1
    nothing = table >= start[:, None]
    return np.asarray(np.where(nothing, 1.0, (table - best[:, None]) / scale[:, None]))


def _table(cells: Sequence[Cell], rules: Sequence[str], name: str, none: float) -> Floats:
    """(rules, cells, seeds) of a score; what is not a number counts as `none`."""
    found = np.array([[c.entries[rule].scores[name] for c in cells] for rule in rules])
    return np.asarray(np.where(np.isnan(found), none, found))


def behind(cells: Sequence[Cell], rules: Sequence[str]) -> list[Interval]:
    """How far the test accuracy of each rule is below that of the best rule, where there is one."""
    some = [c for c in cells if all(ACCURACY in c.entries[rule].scores for rule in rules)]
    if not some:
        return [UNKNOWN] * len(rules)
    table = _table(some, rules, ACCURACY, 0.0)
    return bootstrap(table.mean(axis=2).max(axis=0)[:, None] - table)


def standings(cells: Sequence[Cell], full: Mapping[str, Entry]) -> list[Standing]:
    """The rules over these cells, the one that misses least progress first."""
    rules = list(cells[0].entries)
    table = missing(cells, rules)
    share, rank, accuracy = bootstrap(table), bootstrap(np.apply_along_axis(_ranks, 0, table)), behind(cells, rules)
    order = sorted(range(len(rules)), key=lambda k: (share[k].mean, rank[k].mean, k))
    tests = {frozenset((p.first, p.second)): p for p in pairs(cells)}
    found = []
    for k in order:
        test = tests.get(frozenset((rules[order[0]], rules[k])))
        worse = test is not None and test.p < CHANCE
        standing = _standing(rules[k], cells, full, table[k], not worse)
        found.append(standing._replace(missing=share[k], rank=rank[k], behind=accuracy[k]))
    return found


def _standing(
    rule: str, cells: Sequence[Cell], full: Mapping[str, Entry], table: Floats, leading: bool
) -> Standing:
    """A rule whose progress (cells, seeds) is given; its intervals are not known yet."""
    entries, means = [c.entries[rule] for c in cells], table.mean(axis=1)
    worst, shares = int(means.argmax()), reached(rule, cells)
    middle = float(np.median(shares))
    return Standing(
        rule, UNKNOWN, cells[worst].name, float(means[worst]), float(np.mean(means <= NEAR)), UNKNOWN, UNKNOWN,
        middle if math.isfinite(middle) else math.nan, int(np.isfinite(shares).sum()),
        _behind_full(rule, cells, full),
        _mean(entries, ACCURACY), _mean(entries, f"{ACCURACY}_over_time"), _mean(entries, WORST), leading,
        sum(e.diverged for e in entries), sum(e.edge for e in entries),
        {name: float(np.mean([e.costs[name] for e in entries])) for name in entries[0].costs},
    )  # fmt: skip


def reached(rule: str, cells: Sequence[Cell]) -> list[float]:
    """For each cell the share of its rounds or hours after which a rule is where FedAvg ends; infinite if never."""
    found = []
    for c in cells:
        end = c.entries[PLAIN].scores[OBJECTIVE].mean() if PLAIN in c.entries else -math.inf
        curve = c.entries[rule].curves.get(OBJECTIVE)
        pairs = zip(curve.rounds, curve.values, strict=True) if curve and not c.entries[rule].diverged else ()
        found.append(next((t / c.end for t, value in pairs if value <= end), math.inf))
    return found


def _behind_full(rule: str, cells: Sequence[Cell], full: Mapping[str, Entry]) -> float:
    some = [c for c in cells if c.task in full]
    if not some:
        return math.nan
    best = np.array([full[c.task].scores[OBJECTIVE].mean() for c in some])
    return float(_missing(_objectives(some, [rule]), best, some).mean())


def _mean(entries: Sequence[Entry], name: str) -> float:
    values = [e.scores[name].mean() for e in entries if name in e.scores]
    return float(np.mean(values)) if values else math.nan


def _ranks(values: Floats) -> Floats:
    """1 for the least; equal values share their mean rank, and what is not a number is last."""
    v = np.where(np.isnan(values), math.inf, values)
    below = (v[:, None] > v).sum(axis=1)
    equal = (v[:, None] == v).sum(axis=1)
    return np.asarray(below + (equal + 1) / 2)


def bootstrap(table: Floats) -> list[Interval]:
    """The mean over cells and seeds of each rule, with its interval if both had been drawn again."""
    _, cells, seeds = table.shape
    rng = stream(0, "arena", "bootstrap")
    by_cell, by_seed = (rng.multinomial(m, np.full(m, 1 / m), DRAWS) / m for m in (cells, seeds))
    drawn = np.einsum("bc,rcs,bs->rb", by_cell, table, by_seed)
    low, high = np.percentile(drawn, ENDS, axis=1)
    return [Interval(*map(float, three)) for three in zip(table.mean(axis=(1, 2)), low, high, strict=True)]


def pairs(cells: Sequence[Cell]) -> list[Pair]:
    """Every pair of rules, tested over the seeds; the chances are Holm's, for all pairs together."""
    rules = list(cells[0].entries)
    table = missing(cells, rules).mean(axis=1)  # (rules, seeds)
    found = [(a, b, table[a] - table[b]) for a, b in itertools.combinations(range(len(rules)), 2)]
    chances = [min(1.0, 2 * min(p_value(v), p_value(-v))) for _, _, v in found]
    return [
        Pair(rules[a], rules[b], float(v.mean()), float(p))
        for (a, b, v), p in zip(found, holm(chances), strict=True)
    ]


def subsets(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of every task, participation and belief, and of all; by `TASK|PARTICIPATION|BELIEF`."""
    keys = [("", *dict.fromkeys(getattr(c, name) for c in cells)) for name in ("task", "participation", "belief")]
    found = {}
    for parts in itertools.product(*keys):
        of = [c for c in cells if all(p in ("", own) for p, own in zip(parts, c[1:4], strict=True))]
        if of:
            found["|".join(parts)] = of
    return found

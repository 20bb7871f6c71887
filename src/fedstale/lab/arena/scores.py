"""Standings of rules over cells, with their uncertainty.

The score of a rule in a cell is its training objective in the last 10 rounds, compared with that of the best
rule of the cell: ln(objective / best). Differences above a factor of 100, and runs that diverged, count as 100.
Intervals are a bootstrap over cells and seeds at once. A pair of rules is tested by the mean difference over the
cells of each seed, with Holm's correction over all pairs.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedstale.core import Floats
from fedstale.lab.arena.records import ACCURACY, WORST, Cell, Entry
from fedstale.lab.runs.metrics import OBJECTIVE
from fedstale.lab.runs.statistics import holm, p_value
from fedstale.rng import stream

MOST = math.log(100.0)  # the largest difference that counts
DRAWS = 1000  # of the bootstrap
NEAR = math.log(1.02)  # of the best rule of a cell
ENDS = (5, 95)  # percent: a 90 % interval
CHANCE = 0.05  # of any wrong difference among all pairs


class Interval(NamedTuple):
    """A mean and its 90 % interval."""

    mean: float
    low: float
    high: float


class Standing(NamedTuple):
    """A rule over some cells; objectives are shares above those of others: 0.1 is 10 % above."""

    rule: str
    rank: Interval  # mean rank, 1 is the best
    above_best: Interval  # above the best rule of each cell
    above_full: float  # above every client in every round
    accuracy: float
    accuracy_over_time: float
    worst_decile: float  # accuracy of the worst-served tenth of the clients
    near: float  # share of the cells in which it is within 2 % of the best rule
    worst_cell: str
    worst_above: float  # above the best rule in that cell
    leading: bool  # not worse than the first beyond chance
    diverged: int
    edges: int  # cells in which the rate was the least or the largest that was tried
    costs: Mapping[str, float]  # means over the cells


class Pair(NamedTuple):
    """Two rules: how much larger the objective of the first is, and the corrected chance of seeing that by luck."""

    first: str
    second: str
    above: float
    p: float


def logs(cells: Sequence[Cell], rules: Sequence[str]) -> Floats:
    """(rules, cells, seeds) ln of the objective, relative to the best rule of the cell."""
    table = np.array([[c.entries[rule].scores[OBJECTIVE] for c in cells] for rule in rules])
    with np.errstate(divide="ignore"):
        found = np.log(np.maximum(table, 1e-300))
    best = np.minimum(found.mean(axis=2).min(axis=0), 1e300)  # (cells,)
    return np.asarray(np.clip(found - best[:, None], -MOST, MOST))


def standings(cells: Sequence[Cell], full: Mapping[str, Entry]) -> list[Standing]:
    """The rules over these cells, the best mean rank first."""
    rules = list(cells[0].entries)
    table = logs(cells, rules)
    ranks = np.apply_along_axis(_ranks, 0, table)
    excess, rank = bootstrap(table), bootstrap(ranks)
    order = sorted(range(len(rules)), key=lambda k: (rank[k].mean, excess[k].mean, k))
    tests = {frozenset((p.first, p.second)): p for p in pairs(cells)}
    leader, found = order[0], []
    for k in order:
        test = tests.get(frozenset((rules[leader], rules[k])))
        worse = test is not None and test.p < CHANCE and excess[k].mean > excess[leader].mean
        found.append(_standing(rules[k], cells, full, table[k], rank[k], excess[k], not worse))
    return found


def _standing(
    rule: str, cells: Sequence[Cell], full: Mapping[str, Entry], table: Floats, rank: Interval, excess: Interval,
    leading: bool,
) -> Standing:  # fmt: skip
    entries, worst = [c.entries[rule] for c in cells], int(table.mean(axis=1).argmax())
    return Standing(
        rule, rank, Interval(*map(math.expm1, excess)), _above_full(rule, cells, full),
        _mean(entries, ACCURACY), _mean(entries, f"{ACCURACY}_over_time"), _mean(entries, WORST),
        float(np.mean(table.mean(axis=1) <= NEAR)), cells[worst].name, math.expm1(float(table[worst].mean())),
        leading,
        sum(e.diverged for e in entries), sum(e.edge for e in entries),
        {name: float(np.mean([e.costs[name] for e in entries])) for name in entries[0].costs},
    )  # fmt: skip


def _above_full(rule: str, cells: Sequence[Cell], full: Mapping[str, Entry]) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = [np.log(c.entries[rule].scores[OBJECTIVE] / full[c.task].scores[OBJECTIVE]).mean() for c in cells]
    return math.expm1(float(np.mean(np.clip(np.nan_to_num(found), -MOST, MOST))))


def _mean(entries: Sequence[Entry], name: str) -> float:
    values = [e.scores[name].mean() for e in entries if name in e.scores]
    return float(np.mean(values)) if values else math.nan


def _ranks(values: Floats) -> Floats:
    """1 for the least; equal values share their mean rank."""
    below = (values[:, None] > values).sum(axis=1)
    equal = (values[:, None] == values).sum(axis=1)
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
    table = logs(cells, rules).mean(axis=1)  # (rules, seeds)
    found = [(a, b, table[a] - table[b]) for a, b in itertools.combinations(range(len(rules)), 2)]
    chances = [min(1.0, 2 * min(p_value(v), p_value(-v))) for _, _, v in found]
    return [
        Pair(rules[a], rules[b], math.expm1(float(v.mean())), float(p))
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

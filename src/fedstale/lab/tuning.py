"""Tuning on equal terms: the learning rate of every rule is chosen by the same number of runs.

First all rates of a list are tried on a share of the rounds. Then `more` rates follow, one by one: beyond the end
of the list if the best so far is there, else between the best and its better neighbour. The `keep` best go on to
runs of all rounds (successive halving), and the best of them is chosen. What counts is the training objective, the
mean over the tuning seeds and the last 10 rounds; no run of the evaluation is seen.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

Scores = Mapping[float, float]  # by rate: the training objective, infinite if a run diverged


class Choice(NamedTuple):
    """The learning rate of a rule in a cell, and how it was found."""

    rate: float
    edge: bool  # whether it is the least or the largest that was tried, so that a better one may lie beyond
    short: Scores  # of the runs over a share of the rounds
    whole: Scores  # of the runs over all rounds

    @property
    def tried(self) -> int:
        """How many settings were run, each once for every tuning seed."""
        return len(self.short) + len(self.whole)


def next_rate(scores: Scores, factor: float) -> float:
    """The rate that is tried next: beyond the end of the list if the best is there, else beside the best."""
    rates = sorted(scores)
    k = rates.index(_best(scores))
    if k == 0:
        return rates[0] / factor
    if k == len(rates) - 1:
        return rates[-1] * factor
    below, above = rates[k - 1], rates[k + 1]
    return math.sqrt(rates[k] * (below if scores[below] <= scores[above] else above))


def survivors(scores: Scores, keep: int) -> list[float]:
    """The rates that go on to runs of all rounds, the best first; of equals, the smaller."""
    return sorted(scores, key=lambda rate: (scores[rate], rate))[:keep]


def choice(short: Scores, whole: Scores) -> Choice:
    """The rate that is chosen."""
    best = _best(whole)
    return Choice(best, best in (min(short), max(short)), dict(short), dict(whole))


def _best(scores: Scores) -> float:
    return survivors(scores, 1)[0]

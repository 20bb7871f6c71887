"""Tuning on equal terms: the rates of the clients and of the server are chosen by the same number of runs.

First all rates of a list are tried, with the step added as it is, on a share of the rounds. The two best rates are
tried with every other rate of the server. Then `more` settings follow, one by one, with the server's rate of the
best: a rate beyond the end of those tried if the best is there, else one between the best and its better neighbour.
The `keep` best settings go on to runs of all rounds (successive halving), and the best of them is chosen. What
counts is the training objective, the mean over the tuning seeds and the last 10 rounds; no run of the evaluation
is seen.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PROMISING = 2  # rates that are tried with every rate of the server


class Setting(NamedTuple):
    """What is tuned: the learning rate of the clients, and the factor by which the server's step is longer."""

    rate: float
    server: float = 1.0


Scores = Mapping[Setting, float]  # the training objective, infinite if a run diverged


class Choice(NamedTuple):
    """The setting of a rule in a cell, and how it was found."""

    setting: Setting
    edge: bool  # whether its rate is the least or the largest that was tried, so that a better one may lie beyond
    short: Scores  # of the runs over a share of the rounds
    whole: Scores  # of the runs over all rounds

    @property
    def tried(self) -> int:
        """How many settings were run, each once for every tuning seed."""
        return len(self.short) + len(self.whole)


def with_servers(scores: Scores, servers: Sequence[float]) -> list[Setting]:
    """The most promising rates with every rate of the server that was not tried with them."""
    best = sorted(s.rate for s in survivors(scores, PROMISING))
    return [new for rate in best for server in servers if (new := Setting(rate, server)) not in scores]


def next_setting(scores: Scores, step: float) -> Setting:
    """What is tried next: a rate beyond the end of the list if the best is there, else beside the best."""
    best = survivors(scores, 1)[0]
    rates = sorted(s.rate for s in scores if s.server == best.server)
    k = rates.index(best.rate)
    if k == 0:
        return best._replace(rate=rates[0] / step)
    if k == len(rates) - 1:
        return best._replace(rate=rates[-1] * step)
    below, above = rates[k - 1], rates[k + 1]
    nearer = below if scores[best._replace(rate=below)] <= scores[best._replace(rate=above)] else above
    return best._replace(rate=math.sqrt(best.rate * nearer))


def survivors(scores: Scores, keep: int) -> list[Setting]:
    """The settings that go on to runs of all rounds, the best first; of equals, the smaller."""
    worst_last = {s: score if math.isfinite(score) else math.inf for s, score in scores.items()}
    return sorted(scores, key=lambda setting: (worst_last[setting], setting))[:keep]


def choice(short: Scores, whole: Scores) -> Choice:
    """The setting that is chosen."""
    best, rates = survivors(whole, 1)[0], [s.rate for s in short]
    return Choice(best, best.rate in (min(rates), max(rates)), dict(short), dict(whole))

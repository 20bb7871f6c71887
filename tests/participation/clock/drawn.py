"""FedStale over drawn timelines: `python -m tests.participation.clock.drawn --timelines 10000`.

Clients toss a coin for every tick of the server. The mean of FedStale's second step must be Σ a_i Δ_i; the program
prints the z-score of every coordinate.
"""

import argparse
from itertools import islice
from typing import Any

import numpy as np

from fedstale.core import Floats, Ids, Round, Work
from fedstale.participation import Bernoulli
from fedstale.participation.clock import Clock, Constant, Load, Ticks
from fedstale.strategies import FedStale

N, D = 5, 2
P = np.array([0.1, 0.3, 0.5, 0.8, 1.0], np.float32)
A = np.array([0.3, 0.1, 0.2, 0.3, 0.1], np.float32)
OLD, NEW = np.random.default_rng(4).standard_normal((2, N, D)).astype(np.float32)  # what clients send for each step


def _round(t: int, clients: Ids, sent: Any) -> Round:
    m = len(clients)
    work = Work(np.ones(m, np.int64), np.ones(m, np.int64), np.ones(m))
    mine, there = sent[clients], np.ones((m, 1), np.bool_)
    return Round(t, np.zeros(D, np.float32), clients, mine, there, np.zeros(m, np.float32), A, P, work, -mine)


def scores(timelines: int) -> Floats:
    """(d,) z-scores of the mean of the second step."""
    clock, rule, load = (
        Clock(Ticks(1.0, N), Constant(1.0), round_seconds=1.0),
        FedStale(0.7),
        Load(np.ones(N), 1, 1),
    )
    steps = []
    for seed in range(timelines):
        first, second = islice(clock.rows(Bernoulli(P), N, load, seed), 2)
        _, state = rule.aggregate(rule.init(N, D), _round(1, first.clients, OLD))
        steps.append(rule.aggregate(state, _round(2, second.clients, NEW))[0])
    return np.asarray((np.mean(steps, axis=0) - A @ NEW) / (np.std(steps, axis=0) / np.sqrt(timelines)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timelines", type=int, default=10_000)
    count = parser.parse_args().timelines
    print(f"{count} timelines, z = {', '.join(f'{z:.2f}' for z in scores(count))}")

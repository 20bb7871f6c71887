"""FedAvg, Unbiased, FedVARP and MIFA against their formulas."""

import numpy as np
from hypothesis import given

from fedstale.strategies import MIFA, FedAvg, FedVARP, Unbiased
from tests.strategies.rounds import History, histories, near, numbers, played


def remembered(h: list[list[float]], clients: list[int], updates: dict[int, list[float | None]]) -> None:
    for i in clients:
        h[i] = [old if new is None else new for old, new in zip(h[i], updates[i], strict=True)]


@given(histories())
def test_fedavg(history: History) -> None:
    steps, scales = [], []
    for r in map(numbers, history.rounds):
        step, scale = [], []
        for j in range(history.d):
            came = [(r.a[i], x) for i in r.clients if (x := r.updates[i][j]) is not None]
            weight = sum(a for a, _ in came)
            step.append(sum(a * x for a, x in came) / weight if came else 0.0)
            scale.append(max((abs(x) for _, x in came), default=0.0))
        steps.append(step)
        scales.append(scale)
    near(played(FedAvg(), history), steps, scales)


@given(histories())
def test_unbiased(history: History) -> None:
    steps, scales = [], []
    for r in map(numbers, history.rounds):
        terms = [
            [r.a[i] / r.p[i] * x for i in r.clients if (x := r.updates[i][j]) is not None] for j in range(history.d)
        ]
        steps.append([sum(t) for t in terms])
        scales.append([sum(map(abs, t)) for t in terms])
    near(played(Unbiased(), history), steps, scales)


@given(histories())
def test_fedvarp(history: History) -> None:
    """mean_S(Δ_i - h_i) + mean_N(h_i), coordinate by coordinate where only some of an update is here."""
    n, h = history.n, [[0.0] * history.d for _ in range(history.n)]
    steps, scales = [], []
    for r in map(numbers, history.rounds):
        step, scale = [], []
        for j in range(history.d):
            changes = [x - h[i][j] for i in r.clients if (x := r.updates[i][j]) is not None]
            sizes = [abs(x) + abs(h[i][j]) for i in r.clients if (x := r.updates[i][j]) is not None]
            column = [h[i][j] for i in range(n)]
            step.append((sum(changes) / len(changes) if changes else 0.0) + sum(column) / n)
            scale.append(max(sizes, default=0.0) + sum(map(abs, column)) / n)
        remembered(h, r.clients, r.updates)
        steps.append(step)
        scales.append(scale)
    near(played(FedVARP(), history), steps, scales)


@given(histories())
def test_mifa(history: History) -> None:
    """h_i ← Δ_i first, then Σ_i a_i h_i: the step of a round already has its updates in it."""
    h = [[0.0] * history.d for _ in range(history.n)]
    steps, scales = [], []
    for r in map(numbers, history.rounds):
        before = [max(abs(row[j]) for row in h) for j in range(history.d)]
        remembered(h, r.clients, r.updates)
        steps.append([sum(r.a[i] * h[i][j] for i in range(history.n)) for j in range(history.d)])
        scales.append([before[j] + max(abs(row[j]) for row in h) for j in range(history.d)])
    near(played(MIFA(), history), steps, scales)


@given(histories(everybody=True))
def test_with_everybody_mifa_and_unbiased_are_the_mean(history: History) -> None:
    scales = [np.abs(r.updates).max(axis=0) * 3 for r in history.rounds]
    mean = played(FedAvg(), history)
    near(played(MIFA(), history), mean, scales)
    near(played(Unbiased(), history), mean, scales)

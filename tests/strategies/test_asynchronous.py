"""FedBuff, FedAsync, CA²FL, ACE and FADAS against their algorithms, written out one arrival at a time."""

from typing import Any

import numpy as np
import pytest

from fedstale import registry
from fedstale.core import BadInput, Round
from fedstale.strategies import FADAS, FedAsync, FedBuff, FedStale

N, D, STEPS = 6, 3, 40


def script(seed: int = 0) -> list[tuple[list[tuple[int, Any, int]], int]]:
    """For each step the arrivals (client, update, age), of distinct clients, and nothing in some of the steps."""
    rng, found = np.random.default_rng(seed), []
    for t in range(STEPS):
        who = np.flatnonzero(rng.random(N) < (0.0 if t % 9 == 5 else 0.5))
        ages = rng.integers(0, min(t, 15) + 1, len(who))
        arrivals = [
            (int(i), rng.standard_normal(D).astype(np.float32), int(s)) for i, s in zip(who, ages, strict=True)
        ]
        found.append((arrivals, t))
    return found


def played(rule: Any, seed: int = 0) -> list[Any]:
    """The parameters after each step of a strategy, with the updates of the script."""
    history, state = [np.zeros(D, np.float32)], rule.init(N, D)
    for t, (arrivals, _) in enumerate(script(seed), 1):
        clients, m = np.array([i for i, _, _ in arrivals], np.int64), len(arrivals)
        ages = np.array([s for _, _, s in arrivals], np.int64)
        r = Round(
            t, history[-1], clients, np.array([u for _, u, _ in arrivals], np.float32).reshape(m, D),
            np.ones((m, 1), bool), np.zeros(m, np.float32), np.full(N, 1 / N, np.float32),
            np.full(N, 0.5, np.float32),
            ages=ages, starts=np.array([history[-1 - s] for s in ages], np.float32).reshape(m, D),
        )  # fmt: skip
        step, state = rule.aggregate(state, r)
        history.append(history[-1] + step)
    return history[1:]


def near(got: list[Any], due: list[Any]) -> None:
    np.testing.assert_allclose(np.array(got), np.array(due), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_fedbuff(power: float) -> None:
    w, due = np.zeros(D), []
    for arrivals, _ in script():
        buffer = np.zeros(D)
        for _, update, age in arrivals:
            buffer += update / (1 + age) ** power
        w = w + buffer / max(len(arrivals), 1)
        due.append(w)
    near(played(FedBuff(power)), due)


def test_fedasync() -> None:
    history = [np.zeros(D)]
    for arrivals, _ in script():
        w = history[-1]
        for _, update, age in arrivals:
            alpha = 0.3 * (1 + age) ** -0.5
            w = (1 - alpha) * w + alpha * (history[-1 - age] + update)  # its model, from what it was sent
        history.append(w)
    near(played(FedAsync(mixing=0.3)), history[1:])


def test_ca2fl() -> None:
    w, h, due = np.zeros(D), np.zeros((N, D)), []
    for arrivals, _ in script():
        mean, buffer = h.mean(axis=0), np.zeros(D)  # of before the buffer was filled
        for i, update, _ in arrivals:
            buffer += update - h[i]
            h[i] = update
        w = w + mean + buffer / max(len(arrivals), 1)
        due.append(w)
    near(played(registry.recipe("ca2fl").strategy), due)


def test_ace() -> None:
    w, latest, due = np.zeros(D), np.zeros((N, D)), []
    for arrivals, _ in script():
        for i, update, _ in arrivals:
            latest[i] = update
        w = w + latest.mean(axis=0)
        due.append(w)
    near(played(registry.recipe("ace").strategy), due)


def test_fadas() -> None:
    w, m, v, largest, due = np.zeros(D), np.zeros(D), np.zeros(D), np.zeros(D), []
    for arrivals, _ in script():
        if arrivals:
            delta, oldest = np.zeros(D), 0
            for _, update, age in arrivals:
                delta, oldest = delta + update / len(arrivals), max(oldest, age)
            m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
            largest = np.maximum(largest, v)
            rate = 0.5 if oldest <= 4 else min(0.5, 1 / oldest)
            w = w + rate * m / (np.sqrt(largest) + 1e-8)
        due.append(w)
    near(played(FADAS(lr=0.5, delay=4)), due)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_weight_of_an_update_of_fedstale(beta: float) -> None:
    """The k-th update of a client enters with (1-β) a/p + β a L, L steps before its next visit."""
    visits = [3, 4, 9, 17, 30]
    for k, begin in enumerate(visits[:-1]):
        rule, total = FedStale(beta), 0.0
        state = rule.init(N, 1)
        for t in range(1, visits[k + 1] + 1):
            here = np.array([2] if t in visits else [], np.int64)
            update = np.full((len(here), 1), float(t == begin), np.float32)  # 1 for the k-th, 0 for all others
            step, state = rule.aggregate(state, Round(
                t, np.zeros(1, np.float32), here, update, np.ones((len(here), 1), bool),
                np.zeros(len(here), np.float32), np.full(N, 0.2, np.float32), np.full(N, 0.25, np.float32),
            ))  # fmt: skip
            total += float(step[0])
        length = visits[k + 1] - begin
        assert total == pytest.approx((1 - beta) * 0.2 / 0.25 + beta * 0.2 * length, rel=1e-5)


def test_settings_are_checked() -> None:
    with pytest.raises(BadInput, match=r"mixing must be in \(0, 1\], got 2"):
        FedAsync(mixing=2.0)
    with pytest.raises(BadInput, match="power must be at least 0, got -1"):
        FedBuff(-1.0)
    with pytest.raises(BadInput, match="delay must be at least 0, got -1"):
        FADAS(delay=-1)

"""F3AST against its rule, client by client."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import Availability, BadInput, Local, Round
from fedstale.engines.serial import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies.f3ast import F3AST
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_strategy


def asked(t: int, clients: Any, weights: Any, probs: Any) -> Availability:
    n, k = len(weights), len(clients)
    return Availability(
        t,
        np.array(clients, np.int64),
        np.zeros(k, np.float32),
        np.array(weights, np.float32),
        np.array(probs, np.float32),
        np.zeros(n, np.float32),
    )


def closed(t: int, clients: Any, updates: Any, weights: Any) -> Round:
    m, d = updates.shape
    ones = np.ones((m, 1), bool)
    return Round(
        t, np.zeros(d, np.float32), clients, updates, ones, np.zeros(m, np.float32), weights, np.ones(len(weights))
    )


@given(st.integers(1, 6), st.integers(1, 7), st.sampled_from([0.01, 0.3, 1.0]), st.integers(0, 2**32))
def test_rates_choice_and_step(n: int, M: int, s: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, p = rng.dirichlet(np.ones(n)).astype(np.float32), rng.uniform(0.1, 1, n).astype(np.float32)
    strategy = F3AST(clients=M, rate=s)
    state, r = strategy.init(n, 2), p.astype(float).tolist()
    for t in range(1, 6):
        here = np.flatnonzero(rng.random(n) < 0.6)
        chosen, state = strategy.select(state, asked(t, here, a, p))
        r = [(1 - s) * x + s * (i in here) for i, x in enumerate(r)]
        assert state.r.tolist() == pytest.approx(r)
        first = sorted(here.tolist(), key=lambda i: -((float(a[i]) / r[i]) ** 2))[:M]
        assert chosen.tolist() == sorted(first)
        updates = rng.standard_normal((len(chosen), 2)).astype(np.float32)
        step, state = strategy.aggregate(state, closed(t, chosen, updates, a))
        due = sum((float(a[i]) / r[i] * x for i, x in zip(chosen, updates, strict=True)), np.zeros(2))
        assert step == pytest.approx(due, rel=1e-5, abs=1e-5)


def test_by_hand() -> None:
    # r = (0.5, 0.25, 1) becomes ½ r + ½ here = (0.75, 0.625, 0.5); a / r = (⅓ / .75, ⅓ / .625): client 1 leads
    strategy, a = F3AST(clients=1, rate=0.5), np.full(3, 1 / 3, np.float32)
    chosen, state = strategy.select(strategy.init(3, 1), asked(1, [0, 1], a, [0.5, 0.25, 1.0]))
    assert chosen.tolist() == [1]
    assert state.r.tolist() == [0.75, 0.625, 0.5]
    step, state = strategy.aggregate(state, closed(1, chosen, np.array([[6.0]], np.float32), a))
    assert step[0] == pytest.approx(6 / 3 / 0.625)
    # remembered: nobody there halves the rates, whatever is believed of p by now
    chosen, state = strategy.select(state, asked(2, [], a, [1.0, 1.0, 1.0]))
    assert chosen.tolist() == []
    assert state.r.tolist() == [0.375, 0.3125, 0.25]


def test_of_equals_the_first_are_chosen_and_nothing_given_is_changed() -> None:
    strategy = F3AST(clients=2, rate=0.1)
    before = strategy.init(4, 1)
    given_probs = np.full(4, 0.5, np.float32)
    chosen, _ = strategy.select(before, asked(1, [0, 2, 3], np.full(4, 0.25), given_probs))
    assert chosen.tolist() == [0, 2]
    assert before.r.tolist() == [0.0] * 4
    assert given_probs.tolist() == [0.5] * 4


def test_in_a_simulation_no_more_than_m_train() -> None:
    engine = Serial(Quadratic.random(8, 2), Local(lr=0.05, steps=1))
    snapshots = list(simulate(engine, F3AST(clients=3, rate=0.02), Bernoulli(0.7), rounds=20))
    assert all(len(s.clients) == min(3, len(s.available)) for s in snapshots)
    assert max(len(s.available) for s in snapshots) > 3


def test_it_keeps_the_promises_of_a_strategy() -> None:
    check_strategy(F3AST(clients=2, rate=0.1))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"clients": 0}, "clients must be at least 1, got 0"),
        ({"clients": 1, "rate": 0.0}, r"rate must be in \(0, 1\], got 0.0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        F3AST(**settings)

"""Random histories of rounds, and the rules of the papers once more: float64, one number at a time."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from fedstale.core import Round, Strategy


class History(NamedTuple):
    n: int
    d: int
    rounds: list[Round]


@st.composite
def histories(draw: Any, *, same_weights: bool = False, everybody: bool = False) -> History:
    """Rounds with some of n clients, also with nobody; whole and cut updates; NaN where nothing arrived."""
    n, d, length = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    weights, rounds = _weights(rng, n), []
    p = np.ones(n) if everybody else rng.uniform(0.05, 1, n)
    for t in range(1, length + 1):
        present = np.ones(n, bool) if everybody else rng.random(n) < draw(st.sampled_from([0.0, 0.4, 0.8, 1.0]))
        clients = np.flatnonzero(present)
        wide, all_of_it = draw(st.booleans()), everybody or draw(st.booleans())
        arrived = (rng.random((len(clients), d if wide else 1)) < 0.6) | all_of_it
        updates = (10 ** rng.uniform(-2, 2) * rng.standard_normal((len(clients), d))).astype(np.float32)
        if not same_weights and draw(st.booleans()):
            weights = _weights(rng, n)
        rounds.append(
            Round(
                t=t,
                params=rng.standard_normal(d).astype(np.float32),
                clients=clients,
                updates=np.where(arrived, updates, np.float32(np.nan)),
                arrived=arrived,
                losses=rng.random(len(clients)).astype(np.float32),
                weights=weights,
                probs=p.astype(np.float32),
            )
        )
    return History(n, d, rounds)


def _weights(rng: np.random.Generator, n: int) -> Any:
    weights = rng.random(n) + 0.05
    return (weights / weights.sum()).astype(np.float32)


def played(strategy: Strategy, history: History) -> list[Any]:
    """The steps of a strategy over a history."""
    state, steps = strategy.init(history.n, history.d), []
    for r in history.rounds:
        step, state = strategy.aggregate(state, r)
        assert step.dtype == np.float32
        assert step.shape == (history.d,)
        steps.append(step)
    return steps


class Numbers(NamedTuple):
    """A round as nested lists of Python numbers, with None where nothing arrived."""

    clients: list[int]
    updates: dict[int, list[float | None]]
    a: list[float]
    p: list[float]


def numbers(r: Round) -> Numbers:
    here = np.broadcast_to(r.arrived, r.updates.shape)
    updates = {
        int(i): [float(x) if there else None for x, there in zip(row, mask, strict=True)]
        for i, row, mask in zip(r.clients, r.updates, here, strict=True)
    }
    return Numbers([int(i) for i in r.clients], updates, [float(x) for x in r.weights], [float(x) for x in r.probs])


def near(steps: Sequence[Any], wanted: Sequence[Any], scales: Sequence[Any]) -> None:
    """Equal up to the rounding of float32 numbers as large as the terms that were summed."""
    assert len(steps) == len(wanted)
    for t, (step, due, scale) in enumerate(zip(steps, wanted, scales, strict=True), 1):
        apart = np.abs(np.asarray(step, np.float64) - np.asarray(due))
        assert (apart <= 1e-6 * np.asarray(scale) + 1e-12).all(), f"round {t}: {step} is not {due}"

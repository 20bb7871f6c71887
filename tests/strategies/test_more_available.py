"""MoreAvailable: who trains, and that the others never do."""

from typing import Any

import numpy as np
import pytest

from fedstale.core import Availability, Local, Round
from fedstale.engines.serial import Serial
from fedstale.participation import Bernoulli
from fedstale.participation.estimators import Intervals
from fedstale.simulate import simulate
from fedstale.strategies.more_available import MoreAvailable
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_strategy


def chosen(probs: list[float], clients: list[int] | None = None) -> list[int]:
    n = len(probs)
    ids = np.arange(n) if clients is None else np.array(clients, np.int64)
    losses, zeros = np.zeros(len(ids), np.float32), np.zeros(n, np.float32)
    a = Availability(1, ids, losses, np.full(n, 1 / n, np.float32), np.array(probs, np.float32), zeros)
    return MoreAvailable().select(None, a)[0].tolist()


@pytest.mark.parametrize(
    ("probs", "used"),
    [
        ([0.9, 0.1, 0.9, 0.1], [0, 2]),  # the median lies between the groups
        ([0.1, 0.2, 0.3, 0.4, 0.5], [3, 4]),  # an odd number: the one in the middle is not above itself
        ([0.1, 0.1, 0.1, 0.5], [3]),  # at the median is not above it
        ([1.0, 1.0, 1.0, 0.1, 0.1], [0, 1, 2]),  # nobody is above 1: those at the median
        ([0.3, 0.3, 0.3], [0, 1, 2]),
        ([0.3], [0]),
    ],
)
def test_those_above_the_median_train(probs: list[float], used: list[int]) -> None:
    assert chosen(probs) == used


def test_the_median_is_of_all_clients_not_of_the_available() -> None:
    assert chosen([0.9, 0.8, 0.2, 0.1], [1, 2, 3]) == [1]
    assert chosen([0.9, 0.8, 0.2, 0.1], [2, 3]) == []


def test_the_step_divides_by_p() -> None:
    def rows(*x: Any) -> Any:
        return np.array(x, np.float32)

    ones = np.ones((2, 1), bool)
    r = Round(1, rows(0), np.array([0, 2]), rows([2], [3]), ones, rows(0, 0), rows(0.5, 0, 0.5), rows(0.5, 0, 1))
    assert MoreAvailable().aggregate(None, r)[0].tolist() == [0.5 / 0.5 * 2 + 0.5 / 1 * 3]


def test_in_a_simulation_the_rare_never_train_and_are_still_counted() -> None:
    engine = Serial(Quadratic.random(6, 2), Local(lr=0.05, steps=1))
    p = [0.9, 0.9, 0.9, 0.3, 0.3, 0.3]
    for s in simulate(engine, MoreAvailable(), Bernoulli(p), rounds=40):
        assert s.chosen.tolist() == [i for i in s.available if i < 3]
        assert s.clients.tolist() == s.chosen.tolist()
    estimated = list(simulate(engine, MoreAvailable(), Bernoulli(p), rounds=300, estimator=Intervals()))
    assert np.abs(estimated[-1].probs - p).max() < 4 * np.sqrt(0.25 / 300)  # a share of 300 rounds


def test_it_keeps_the_promises_of_a_strategy() -> None:
    check_strategy(MoreAvailable())

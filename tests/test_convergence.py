"""Where the rules end up on quadratics with a known optimum: the unbiased at w*, the biased where theory says.

Rates diminish, so that neither the noise of participation nor the drift of local steps is left at the
end; what is left is measured over seeds, and distances are judged in its standard errors.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedstale.core import Local, Mask, Participation, Strategy, part
from fedstale.engines.serial import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.simulate.servers import Sgd
from fedstale.strategies import FedAvg, FedStale, Unbiased
from fedstale.strategies.adafed import AdaFed
from fedstale.strategies.more_available import MoreAvailable
from fedstale.tasks.quadratic import Quadratic
from fedstale.theory import biased_weights, plain_weights

P = np.array([0.9, 0.7, 0.5, 0.25])
A = np.array([0.1, 0.2, 0.3, 0.4])  # the rarest counts most
TASK = Quadratic(
    [[-1.0, 1.0], [0.0, 2.0], [1.0, -1.0], [3.0, 0.5]],
    [[1.0, 0.5], [0.5, 1.0], [1.5, 1.0], [1.0, 2.0]],
    weights=A,
)
OPTIMUM = TASK.optimum()
ENGINE = Serial(TASK, Local(lr=0.4, steps=2, batch=1, decay=0.4))


class End(NamedTuple):
    mean: Any  # (d,) over seeds, of the mean over the last quarter of the rounds
    error: Any  # (d,) its standard error

    def is_at(self, point: Any) -> bool:
        return bool((np.abs(self.mean - point) <= 4 * self.error + 0.01).all())  # 0.01: the drift that is left

    def is_away_from(self, point: Any) -> bool:
        return bool((np.abs(self.mean - point) >= 8 * self.error + 0.05).any())


def end(strategy: Strategy, participation: Participation, *, rounds: int = 500, lr: float = 1.0) -> End:
    ends, seeds = [], 5
    for seed in range(seeds):
        run = simulate(ENGINE, strategy, participation, rounds=rounds, seed=seed, server=Sgd(lr))
        ends.append(np.mean([s.params for s in run if s.t > 3 * rounds // 4], axis=0, dtype=np.float64))
    return End(np.mean(ends, axis=0), np.std(ends, axis=0, ddof=1) / np.sqrt(seeds))


def expected(q: Any) -> Any:
    """E[q_i 1{i in S} / Σ_S q_j] over all 2ⁿ sets of who comes, each with its probability."""
    total = np.zeros(len(P))
    for bits in product([0.0, 1.0], repeat=len(P)):
        here = np.array(bits)
        if here.any():
            total += np.prod(np.where(here > 0, P, 1 - P)) * here * q / (here @ q)
    return total / total.sum()  # nobody there: no step, so only the proportions matter


@part
class OneAtATime:
    """Exactly one client a round, i with probability p_i."""

    p: tuple[float, ...]

    def probs(self, n: int) -> Any:
        return np.array(self.p, np.float32)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        while True:
            yield np.arange(n) == rng.choice(n, p=self.p)


SLOW = [pytest.param(FedStale(beta), marks=pytest.mark.slow) for beta in (0.2, 1.0)]


@pytest.mark.parametrize("strategy", [Unbiased(), FedStale(0.5), *SLOW])
def test_unbiased_rules_reach_the_optimum(strategy: Strategy) -> None:
    reached = end(strategy, Bernoulli(P))
    assert reached.is_at(OPTIMUM)
    assert reached.is_away_from(TASK.optimum(expected(A)))


@pytest.mark.parametrize(("strategy", "q"), [(FedAvg(), A), (AdaFed(), A / P)])
def test_rules_that_average_stop_at_the_optimum_of_their_expected_weights(strategy: Strategy, q: Any) -> None:
    reached = end(strategy, Bernoulli(P))
    assert reached.is_at(TASK.optimum(expected(q)))
    assert reached.is_away_from(OPTIMUM)


def test_with_one_client_a_round_fedavg_stops_where_equation_4_says() -> None:
    p = P / P.sum()
    reached = end(FedAvg(), OneAtATime(tuple(p)))
    assert reached.is_at(TASK.optimum(p))  # one client alone has the whole step, whatever its a_i
    assert np.allclose(biased_weights(p), p)
    assert reached.is_away_from(OPTIMUM)


def test_with_one_client_a_round_the_unbiased_rule_still_reaches_the_optimum() -> None:
    p = P / P.sum()
    reached = end(Unbiased(), OneAtATime(tuple(p)), rounds=1000)
    assert reached.is_at(OPTIMUM)
    assert reached.is_away_from(TASK.optimum(p))


def test_more_available_stops_at_the_optimum_of_those_it_uses() -> None:
    reached = end(MoreAvailable(), Bernoulli(P), lr=1 / (A[0] + A[1]))  # else the start is still felt
    assert reached.is_at(TASK.optimum([A[0], A[1], 0, 0]))
    assert reached.is_away_from(OPTIMUM)


def test_equation_4_is_near_to_the_expected_weights_and_a_matrix_nearer() -> None:
    rows = np.random.default_rng(0).random((20_000, len(P))) < P
    exact = expected(A)
    error = np.sqrt(0.25 / len(rows))  # a weight lies in [0, 1], so its deviation is at most ½
    assert np.abs(plain_weights(rows, A) - exact).max() < 4 * error
    assert 4 * error < np.abs(biased_weights(P, A) - exact).max() < 0.2

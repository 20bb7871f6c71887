"""What came of the rounds of a Flower strategy: reports, the numbers in Flower's Result, and the trace."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedstale.core import Array, Floats, HasBeta, Ids, Mask
from fedstale.flower.federation.state.server_state import Rules
from fedstale.flower.population import Population
from fedstale.privacy.noise import ledger_of
from fedstale.privacy.sums import Sums


class Report(NamedTuple):
    """What came of a round. Arrays are (n,), in the order of `clients`."""

    t: int
    clients: tuple[str, ...]  # all that are known
    heard: tuple[str, ...]  # those whose replies were used
    refused: Mapping[str, str]  # sender → why
    missing: tuple[str, ...]  # those that were asked and did not answer
    doubted: tuple[str, ...]  # those whose replies were sound, and their updates refused by the defence
    weights: Array  # a_i, the clients' weights in the objective
    probs: Array  # p̂_i, how often a client is heard, as estimated after this round
    staleness: Ids  # rounds since a client was heard; -1 if it never was
    beta: float | None  # the share of the memory that the next round uses, if the rule has one
    unusable: bool = False  # replies came, and none was well-formed; those of clients that failed do not count
    seconds: float = 0.0  # since training was started
    ages: Mapping[str, int] = {}  # with a pace: client that was heard → steps since the model that it was sent
    epsilons: Floats | None = None  # with privacy: ε_i of all rounds so far

    @property
    def heard_weight(self) -> float:
        """The share of the objective's weight that was heard."""
        return float(self.weights[np.isin(self.clients, self.heard)].sum(dtype=np.float64))

    @property
    def measures(self) -> dict[str, float | int]:
        """The numbers that are added to the training metrics of a Result."""
        counts = {"heard": len(self.heard), "refused": len(self.refused), "missing": len(self.missing)}
        seen = self.staleness >= 0
        found = counts | {"heard-weight": self.heard_weight}
        found |= {"p-least": float(self.probs[seen].min()), "staleness": float(np.median(self.staleness[seen]))}
        found |= {} if self.beta is None else {"beta": self.beta}
        found |= {} if self.epsilons is None else {"epsilon": float(self.epsilons.max())}
        found |= {"age": float(np.mean([*self.ages.values()]))} if self.ages else {}
        return {f"fedstale-{name}": value for name, value in found.items()}


def report_of(
    population: Population, rules: Rules, heard: Iterable[int], lies: Iterable[int], refused: Mapping[str, str],
    silent: Iterable[int], unusable: bool,
) -> Report:  # fmt: skip
    """The report of the round that has just closed; clients are given by their positions."""
    names, now, last = population.names, population.checkpoint, population.state.counts.last
    state = now.state.inner if isinstance(now.state, Sums) else now.state
    beta, ledger = float(state.beta) if isinstance(state, HasBeta) else None, ledger_of(now.state)
    return Report(
        now.t, names, tuple(names[k] for k in heard), refused, tuple(names[k] for k in silent),
        tuple(names[k] for k in lies), population.weights, rules.estimator.probs(now.belief),
        np.where(last > 0, now.t - last, -1), beta, unusable,
        epsilons=None if ledger is None else ledger.epsilons(),
    )  # fmt: skip


def participation(reports: Sequence[Report]) -> tuple[list[str], Mask]:
    """All clients that ever were known, and who was heard: rounds × clients.

    A sound update that the defence refused was heard: a simulation with the same defence refuses it as well.
    """
    names = list(dict.fromkeys(name for report in reports for name in report.clients))
    rows = [np.isin(names, report.heard + report.doubted) for report in reports]
    return names, np.array(rows, np.bool_).reshape(-1, len(names))

"""Clients that take part as long as energy lasts: a battery that charges and is spent, and budgets.

Rodio, Client heterogeneity in federated learning systems, thesis, 2024, section 6.2, names energy as a cause of
participation. Budget is how the recordings of FedStale's published runs (carbon and time budgets) look: every
client takes part in its cheapest rounds.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Floats, Mask, keep, keep_numbers, part, per_client, require, shown
from fedstale.participation.files import read_array, reading
from fedstale.participation.groups import Kind, independent
from fedstale.participation.trace import replay, shares

MOST = 1000  # units of a battery: its chain has as many states


@part
class Battery:
    """A battery of `capacity` units gets `charge` of them with probability `harvest`; a round costs `cost`.

    Every round a client first charges, and takes part if it holds at least `cost` units, which it spends. `harvest`
    is one probability or one per client. Batteries begin as they are in the long run, so that p_i is the same in
    every round. A client that is there spends, whether a strategy asks it or not.
    """

    harvest: npt.ArrayLike
    charge: int = 1
    cost: int = 2
    capacity: int = 10

    def __post_init__(self) -> None:
        keep_numbers(self, "harvest", "in [0, 1]")
        ok = 1 <= self.cost <= self.capacity <= MOST and 1 <= self.charge <= MOST
        told = f"got charge {self.charge}, cost {self.cost}, capacity {self.capacity}"
        require(ok, f"charge must be from 1 to {MOST}, and cost from 1 to capacity, at most {MOST}, {told}")

    def probs(self, n: int) -> Array:
        return self._long_run(n)[1].astype(np.float32)

    def kinds(self, n: int) -> Iterator[Kind]:
        yield independent(self._long_run(n)[1])

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        h, levels = per_client(self.harvest, n, "harvests"), self._long_run(n)[0]
        level = (levels.cumsum(axis=1) < rng.random(n)[:, None] * levels.sum(axis=1, keepdims=True)).sum(axis=1)
        while True:
            level = np.minimum(level + self.charge * (rng.random(n) < h), self.capacity)
            on = level >= self.cost
            level = level - self.cost * on
            yield on

    def _long_run(self, n: int) -> tuple[Floats, Floats]:
        """(n, capacity + 1) the shares of all levels after a round, and (n,) the shares of rounds that are on."""
        h = per_client(self.harvest, n, "harvests")
        values, which = np.unique(h, return_inverse=True)
        found = [self._levels(value) for value in values.tolist()]
        return np.array([ρ for ρ, _ in found])[which], np.array([p for _, p in found])[which]

    def _levels(self, h: float) -> tuple[Floats, float]:
        """Shares of the levels in the long run of a battery that was empty, and of the rounds that are on."""
        level = np.arange(self.capacity + 1)
        P, on = np.zeros((len(level), len(level))), np.zeros(len(level))
        for filled, chance in ((np.minimum(level + self.charge, self.capacity), h), (level, 1 - h)):
            P[level, filled - self.cost * (filled >= self.cost)] += chance
            on += chance * (filled >= self.cost)
        ε = 1e-10  # ε Σ_t (1 - ε)^t P^t is the mean over all times, also of a chain that is periodic
        ρ = np.linalg.solve((np.eye(len(level)) - (1 - ε) * P).T, ε * (level == 0))
        ρ = np.maximum(ρ, 0) / np.maximum(ρ, 0).sum()
        return ρ, float(min(ρ @ on, 1.0))


@part
class Budget:
    """Every client takes part in its cheapest rounds, as many as `rounds_each` or as `spend` pays for; then again.

    `prices` is (rounds, clients), such as the grams of CO₂ of a round at its hour and place, at least 0: an
    array, or the path of a .csv, .npy or .npz file of numbers. `rounds_each` is a budget of time, `spend` one of
    what the prices measure; each is one for all clients or one per client. Of equal prices the earlier round is
    taken.
    """

    prices: npt.ArrayLike | os.PathLike[str] | str
    rounds_each: npt.ArrayLike | None = None
    spend: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        given = self.prices
        read = _numbers(Path(given)) if isinstance(given, str | os.PathLike) else given
        try:
            table = np.array(read, np.float64)
        except (TypeError, ValueError):
            table = np.zeros(0)
        ok = table.ndim == 2 and table.size > 0 and bool((table >= 0).all())
        got = f"shape {table.shape}" if table.size else shown(given)
        require(ok, f"prices must be (rounds, clients) numbers of at least 0, got {got}")
        ok = (self.rounds_each is None) != (self.spend is None)
        require(ok, "a budget is either rounds_each or spend: give one of them")
        keep_numbers(self, self._limit, "at least 0")
        ok = self.rounds_each is None or bool((np.asarray(self.rounds_each) % 1 == 0).all())
        require(ok, f"rounds_each must be whole numbers, got {shown(self.rounds_each)}")
        keep(self, "prices", table)

    probs, rows = shares, replay

    @property
    def _limit(self) -> str:
        return "spend" if self.rounds_each is None else "rounds_each"

    def recording(self, n: int | None = None) -> Mask:
        """(rounds, n) who takes part."""
        prices = np.asarray(self.prices)
        clients = prices.shape[1]
        require(n in (None, clients), f"{n} clients need {n} columns of prices, got {clients}")
        order = np.argsort(prices, axis=0, kind="stable")
        costs = np.take_along_axis(prices, order, axis=0) if self.rounds_each is None else np.ones(prices.shape)
        most = per_client(getattr(self, self._limit), clients, "budgets")
        paid = costs.cumsum(axis=0) <= most * (1 + 1e-12)
        table = np.zeros(prices.shape, np.bool_)
        np.put_along_axis(table, order, paid, axis=0)
        return table


def _numbers(path: Path) -> npt.ArrayLike:
    """The numbers of a file."""
    with reading(path, "file of prices"):
        if path.suffix in (".npy", ".npz"):
            return read_array(path)
        return np.loadtxt(path, delimiter=",", ndmin=2)

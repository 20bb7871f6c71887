"""Differential privacy of a run: noise on every step, and a ledger of what the steps have told about each client.

Protected is a client: all its updates, in all rounds, replaced by zeros. Who came when is public. Released are
the steps, and with them all that is computed from them. Nobody controls who comes: sampling amplifies nothing.

A rule says how far client i can move the step of round t, its `sensitivity`. What the run has told about the
client is then μ_i² = Σ_t sensitivity_{i,t}² / σ², whatever later rounds depend on (Koskela, Tobaben and Honkela,
Individual Privacy Accounting with Gaussian Differential Privacy, ICLR 2023; Feldman and Zrnic, NeurIPS 2021). A
client whose budget its next round would pass is not asked any more and is forgotten: it costs nothing then.
"""

from collections.abc import Iterable
from dataclasses import field
from typing import Annotated, NamedTuple

import numpy as np

from fedstale.core import LATER, Array, BadInput, Floats, Ids, Mask, Round, State, Strategy, hooks_of, part, require
from fedstale.core.hooks import Sensitivity, inside
from fedstale.core.parts import PositiveFinite, Range
from fedstale.privacy.gaussian import epsilon_of, mu_of
from fedstale.privacy.ring import Ring


class Ledger(NamedTuple):
    """What the steps so far have told about each client."""

    spent: Floats  # (n,) μ_i²
    retired: Mask  # (n,) whose budget is used up
    delta: float  # of the ε that it tells

    def epsilons(self) -> Floats:
        """(n,) ε_i."""
        different, where = np.unique(self.spent, return_inverse=True)
        return np.array([epsilon_of(float(np.sqrt(spent)), self.delta) for spent in different])[where]


@part
class Privacy:
    """Noise of deviation `noise` on every coordinate of a step, and a budget (`epsilon`, `delta`) for each client.

    `secure`: the server sees sums only, rounded and cut at `range` as by secure aggregation, and adds no noise.
    With an `epsilon` alone, the noise is the least with which no client passes its budget in the rounds to come.
    Without an `epsilon` nobody has a budget, and the ledger only says what was spent.
    """

    noise: PositiveFinite | None = None
    epsilon: PositiveFinite | None = None
    delta: Annotated[float, Range("above 0 and below 1")] = 1e-5
    secure: bool = field(default=False, metadata=LATER)
    range: float = field(default=8.0, metadata=LATER)

    def __post_init__(self) -> None:
        counted = self.noise is not None or self.epsilon is not None
        require(counted or self.secure, "privacy needs noise or epsilon, or secure = true, got neither")
        both = "clients would have to add the noise, which is not built yet"
        require(
            not (counted and self.secure), f"secure aggregation cannot be combined with noise or epsilon: {both}"
        )
        Ring(self.range)

    @property
    def budget(self) -> float:
        """μ² that a client may spend."""
        return np.inf if self.epsilon is None else mu_of(self.epsilon, self.delta) ** 2

    def init(self, n: int) -> Ledger:
        """The ledger before round 1."""
        return Ledger(np.zeros(n), np.zeros(n, np.bool_), self.delta)

    def calibrated(self, costs: Floats) -> "Privacy":
        """With the least noise for the dearest of these `costs`, Σ_t sensitivity², if none is given."""
        if self.noise is not None:
            return self
        most = float(costs.max(initial=0.0))
        require(most > 0, "epsilon needs clients that take part to be turned into noise, got none that does")
        slack = 1 + 1e-9  # what is rounded must not retire the dearest client in its last round
        return Privacy(float(np.sqrt(most / self.budget)) * slack, self.epsilon, self.delta)

    def admitted(
        self, ledger: Ledger, strategy: Strategy, state: State, available: Ids, weights: Array, probs: Array
    ) -> tuple[Ids, State, Ledger]:
        """Who of the available may be asked; clients whose budget this round would pass are forgotten."""
        available = available[~ledger.retired[available]]
        rows = sensitivity_of(strategy, state, available, weights, probs)
        dear = ledger.spent + rows**2 / self._variance > self.budget
        if (out := np.flatnonzero(dear & ~ledger.retired)).size:
            forget = hooks_of(strategy).forget
            state = forget(state, out) if forget else state
            ledger = ledger._replace(retired=ledger.retired | dear)
        return available[~ledger.retired[available]], state, ledger

    def check(self, ledger: Ledger) -> None:
        """Refuse to go on where no client has budget left: every further step would be noise alone."""
        if not (ledger.spent < self.budget).any():
            spent = f"{ledger.epsilons().min():.4g}, which every client has spent already"
            raise BadInput(f"epsilon must be above {spent}, got {self.epsilon}")
        over = (
            f"the next round of any client would pass its budget of epsilon = {self.epsilon}, got no other clients"
        )
        require(not ledger.retired.all(), over)

    def told(self, ledger: Ledger, sensitivity: Floats) -> Ledger:
        """The ledger after a step with this sensitivity (n,)."""
        return ledger._replace(spent=ledger.spent + sensitivity**2 / self._variance)

    def noised(self, step: Array, normal: Floats) -> Array:
        """The step with noise, made of normal numbers (d,)."""
        assert self.noise is not None
        return (step + self.noise * normal).astype(np.float32)

    @property
    def _variance(self) -> float:
        require(self.noise is not None, "privacy must be calibrated before the first round: noise is not known yet")
        assert self.noise is not None
        return self.noise**2


def sensitivity_of(strategy: Strategy, state: State, clients: Ids, weights: Array, probs: Array) -> Floats:
    """(n,) how far each client can move the step, by a strategy that says so; another one is refused."""
    sensitivity = bounded(strategy)
    with np.errstate(divide="ignore"):  # a client that never comes has p = 0, and is not heard
        return np.nan_to_num(sensitivity(state, clients, weights, probs), posinf=0.0)


def bounded(strategy: Strategy) -> Sensitivity:
    """How a strategy says how far a client can move a step; one that does not say so is refused."""
    if (sensitivity := hooks_of(strategy).sensitivity) is None:
        for inner in inside(strategy).values():
            bounded(inner)  # whose sentence is the right one if it bounds nothing either
            who, what = type(strategy).__name__, type(inner).__name__
            way = f"take {what} alone, or give {who} a `sensitivity` of its own"
            raise BadInput(f"{who} may change the steps of {what}, whose bound privacy needs; {way}")
        way = 'take PrivateFedStale (kind "private-fedstale") or PrivateFedAvg (kind "private-fedavg")'
        raise BadInput(f"{strategy} bounds no client's influence on a step, which privacy needs; {way}")
    return sensitivity


def costs(strategy: Strategy, presence: Iterable[Mask], weights: Array, probs: Array) -> Floats:
    """(n,) Σ_t sensitivity² of clients that are heard in these rounds: divided by σ² it is μ²."""
    state, total = strategy.init(len(weights), 1), np.zeros(len(weights))
    for t, row in enumerate(presence, start=1):
        clients = np.flatnonzero(row)
        total += sensitivity_of(strategy, state, clients, weights, probs) ** 2
        zeros = np.zeros((len(clients), 1), np.float32)
        all_of_it = np.ones((len(clients), 1), np.bool_)
        r = Round(t, zeros[0], clients, zeros, all_of_it, zeros[:, 0], weights, probs) if len(clients) else None
        _, state = strategy.aggregate(state, r) if r else (None, state)
    return total

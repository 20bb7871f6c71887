"""A rule with noise on its steps and a ledger: any rule that states its sensitivity."""

import os
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, Floats, Hooks, Ids, Round, State, Strategy, hooks_of, part, require, stream
from fedstale.privacy.ledger import Ledger, Privacy, bounded, sensitivity_of


class Accounted(NamedTuple):
    """The state of a rule, and what its steps have told about each client."""

    inner: State
    ledger: Ledger


@part
class Noised:
    """A rule of bounded sensitivity with the noise and the budgets of `privacy`, drawn from `seed`.

    Without a seed the noise is drawn from the operating system, as real clients need it: nobody can draw it again.
    """

    strategy: Strategy
    privacy: Privacy
    seed: int | None = 0

    def __repr__(self) -> str:
        return repr(self.strategy)

    def hooks(self) -> Hooks:
        return hooks_of(self.strategy).lifted()

    def init(self, n: int, d: int) -> Accounted:
        return Accounted(self.strategy.init(n, d), self.privacy.init(n))

    def admit(self, state: Accounted, available: Ids, weights: Array, probs: Array) -> tuple[Ids, Accounted]:
        """The available clients that have budget left; what the others have left in the memory is forgotten."""
        found, inner, ledger = self.privacy.admitted(
            state.ledger, self.strategy, state.inner, available, weights, probs
        )
        return found, Accounted(inner, ledger)

    def aggregate(self, state: Accounted, r: Round) -> tuple[Array, Accounted]:
        """The step with noise; clients whose weight, told with the update, would pass their budget are left out."""
        clients, state = self.admit(state, r.clients, r.weights, r.probs)
        r = r if len(clients) == len(r.clients) else r.of(np.isin(r.clients, clients))
        rows = sensitivity_of(self.strategy, state.inner, r.clients, r.weights, r.probs)
        step, inner = self.strategy.aggregate(state.inner, r)
        normal = self._normal(r.t, len(step))
        return self.privacy.noised(step, normal), Accounted(inner, self.privacy.told(state.ledger, rows))

    def _normal(self, t: int, d: int) -> Floats:
        """(d,) normal numbers for round t."""
        return secret_normal(d) if self.seed is None else stream(self.seed, "privacy", t).standard_normal(d)


def deployed(rule: Strategy, privacy: Privacy) -> Noised:
    """The rule with noise, for real clients, of whom nobody knows before when they will come."""
    way = "give noise, to which `fedstale privacy` turns an epsilon, and epsilon as the budget"
    require(not privacy.secure, "secure = true is for simulations: real clients have secure=SecAgg() in Flower")
    require(privacy.noise is not None, f"who will take part in a federation is not known before: {way}")
    bounded(rule)
    return Noised(rule, privacy, seed=None)


def ledger_of(state: Any) -> Ledger | None:
    """The ledger of a rule with noise; None if it has none."""
    return state.ledger if isinstance(state, Accounted) else None


def secret_normal(d: int) -> Floats:
    """(d,) normal numbers from the random bits of the operating system (Box and Muller)."""
    bits = np.frombuffer(os.urandom(16 * d), np.uint64).reshape(2, d) >> np.uint64(11)
    u, v = (bits + 0.5) / 2.0**53  # above 0 and below 1
    normal: Floats = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)
    return normal

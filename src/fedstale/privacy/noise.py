"""A rule with noise on its steps and a ledger: any rule that states its sensitivity."""

from typing import NamedTuple

from fedstale.core import Array, Hooks, Ids, Round, State, Strategy, hooks_of, part
from fedstale.privacy.ledger import Ledger, Privacy, sensitivity_of
from fedstale.rng import stream


class Accounted(NamedTuple):
    """The state of a rule, and what its steps have told about each client."""

    inner: State
    ledger: Ledger


@part
class Noised:
    """A rule of bounded sensitivity with the noise and the budgets of `privacy`, drawn from `seed`."""

    strategy: Strategy
    privacy: Privacy
    seed: int = 0

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
        rows = sensitivity_of(self.strategy, state.inner, r.clients, r.weights, r.probs)
        step, inner = self.strategy.aggregate(state.inner, r)
        noised = self.privacy.noised(step, stream(self.seed, "privacy", r.t))
        return noised, Accounted(inner, self.privacy.told(state.ledger, rows))

"""Realised weights: how much of each client's update is in a step, measured rather than derived.

The rule is run a second time on updates that are one-hot, the k-th client's being e_k: its step then
*is* the weight of every client, fresh and remembered together, whatever the rule.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, Availability, Ids, Round, State, Strategy, part


class Traced(NamedTuple):
    inner: State
    shadow: State
    weights: Array  # (n,) realised in the last round; a_i would be perfect


@part
class Tracer:
    """The same strategy, which also keeps the weight that each client had in its last step.

    A rule whose coefficients depend on the updates themselves is traced with the ones that it would
    choose for one-hot updates.
    """

    strategy: Strategy

    def __repr__(self) -> str:
        return repr(self.strategy)

    @property
    def inverse_weighting(self) -> bool:
        return bool(getattr(self.strategy, "inverse_weighting", False))

    @property
    def select(self) -> Callable[[Traced, Availability], tuple[Ids, Traced]] | None:
        inner: Any = getattr(self.strategy, "select", None)
        if inner is None:
            return None

        def select(state: Traced, a: Availability) -> tuple[Ids, Traced]:
            chosen, after = inner(state.inner, a)
            return chosen, state._replace(inner=after, shadow=inner(state.shadow, a)[1])

        return select

    @property
    def drift(self) -> Callable[[Traced, Ids], Array] | None:
        inner: Any = getattr(self.strategy, "drift", None)
        return (lambda state, clients: inner(state.inner, clients)) if inner else None

    def init(self, n: int, d: int) -> Traced:
        return Traced(self.strategy.init(n, d), self.strategy.init(n, n), np.zeros(n, np.float32))

    def aggregate(self, state: Traced, r: Round) -> tuple[Array, Traced]:
        step, inner = self.strategy.aggregate(state.inner, r)
        n, m = len(r.weights), len(r.clients)
        ones = np.zeros((m, n), np.float32)
        ones[np.arange(m), r.clients] = 1
        heard = r.arrived.any(axis=1).reshape(m, 1)
        plain = r._replace(params=np.zeros(n, np.float32), updates=ones, arrived=heard)
        weights, shadow = self.strategy.aggregate(state.shadow, plain)
        return step, Traced(inner, shadow, weights)

"""Realised weights: how much of each client's update is in a step, measured rather than derived.

The rule is run a second time on updates that are one-hot, the k-th client's being e_k: its step then
*is* the weight of every client, fresh and remembered together, whatever the rule.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from fedstale.core import Array, Hooks, Round, State, Strategy, hooks_of, part


class Traced(NamedTuple):
    """The state of a traced strategy."""

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
    observes: ClassVar[bool] = True

    def __repr__(self) -> str:
        return repr(self.strategy)

    def hooks(self) -> Hooks:
        """Those of the strategy inside; what changes its state changes that of its shadow as well."""
        return hooks_of(self.strategy).lifted("inner", "shadow")

    def init(self, n: int, d: int) -> Traced:
        return Traced(self.strategy.init(n, d), self.strategy.init(n, n), np.zeros(n, np.float32))

    def aggregate(self, state: Traced, r: Round) -> tuple[Array, Traced]:
        step, inner = self.strategy.aggregate(state.inner, r)
        n, m = len(r.weights), len(r.clients)
        ones = np.zeros((m, n), np.float32)
        ones[np.arange(m), r.clients] = 1
        heard = r.arrived.any(axis=1).reshape(m, 1)
        plain = r._replace(params=np.zeros(n, np.float32), updates=ones, arrived=heard, starts=None)
        if r.gradients is not None and r.work:  # whose step makes a one-hot update
            plain = plain._replace(gradients=-ones * (r.work.steps / r.work.rates)[:, None].astype(np.float32))
        weights, shadow = self.strategy.aggregate(state.shadow, plain)
        return step, Traced(inner, shadow, weights)


def traceable(strategy: Strategy) -> bool:
    """Whether weights can be realised: not if clients begin at points of their own, which are no updates."""
    hooks = hooks_of(strategy)
    return not (hooks.starts or hooks.unheard)

"""Clipped updates: no client moves any rule further than a fixed norm.

Geyer, Klein and Nabi, Differentially Private Federated Learning: A Client Level Perspective, 2017.
"""

import numpy as np

from fedstale.core import Array, Hooks, Positive, Round, State, Strategy, hooks_of, part
from fedstale.core.hooks import Sensitivity


@part
class Clipped:
    """Any rule, which is given Δ_i min(1, bound / ‖Δ_i‖) in the place of Δ_i.

    Steadier where some clients send long updates, and biased against them. What did not arrive counts as 0 in a
    norm. NormBound, which bounds by the median of the round, is for liars; `bound` does not depend on the others.
    """

    strategy: Strategy
    bound: Positive

    def hooks(self) -> Hooks:
        return hooks_of(self.strategy)

    @property
    def sensitivity(self) -> Sensitivity | None:
        """That of the rule inside, which holds for any updates, shorter ones too."""
        return hooks_of(self.strategy).sensitivity

    def init(self, n: int, d: int) -> State:
        return self.strategy.init(n, d)

    def aggregate(self, state: State, r: Round) -> tuple[Array, State]:
        norms = np.sqrt(np.square(r.received(), dtype=np.float64).sum(axis=1))  # (m,)
        if (norms > self.bound).any():
            shrink = (self.bound / np.maximum(norms, self.bound)).astype(np.float32)
            r = r._replace(updates=r.updates * shrink[:, None])
        return self.strategy.aggregate(state, r)

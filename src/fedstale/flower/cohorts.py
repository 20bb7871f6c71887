"""An estimator for clients that join at different times.

A belief counts rounds from its first one. A client that joins in round 30 has not missed 29 rounds, so clients that
join together have a belief of their own.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, EstimatesMixing, Estimator, Mask
from fedstale.federation.state.resize import resize


class Cohort(NamedTuple):
    """The belief about clients that joined in the same round."""

    size: int
    belief: Any


@dataclass(frozen=True)
class Cohorts:
    """The same estimator for every cohort; clients are in the order in which they joined."""

    estimator: Estimator

    def init(self, n: int) -> tuple[Cohort, ...]:
        return (Cohort(n, self.estimator.init(n)),)

    def probs(self, belief: tuple[Cohort, ...]) -> Array:
        return np.concatenate([self.estimator.probs(c.belief) for c in belief])

    def mixing(self, belief: tuple[Cohort, ...]) -> Array:
        if not isinstance(self.estimator, EstimatesMixing):
            return np.zeros(sum(c.size for c in belief), np.float32)
        return np.concatenate([self.estimator.mixing(c.belief) for c in belief])

    def observe(self, belief: tuple[Cohort, ...], heard: Mask) -> tuple[Cohort, ...]:
        parts = zip(belief, _split(belief, heard), strict=True)
        return tuple(Cohort(c.size, self.estimator.observe(c.belief, part)) for c, part in parts)

    def joined(self, belief: tuple[Cohort, ...], newcomers: int) -> tuple[Cohort, ...]:
        """The belief with a cohort of newcomers at the end."""
        return (*belief, *self.init(newcomers))

    def without(self, belief: tuple[Cohort, ...], gone: Mask) -> tuple[Cohort, ...]:
        """The belief without the clients in `gone` (n,)."""
        kept = []
        for c, left in zip(belief, _split(belief, gone), strict=True):
            stay = np.flatnonzero(~left)
            if len(stay):
                kept.append(Cohort(len(stay), resize(c.belief, self.estimator.init, np.arange(c.size), stay)))
        return tuple(kept)


def _split(belief: tuple[Cohort, ...], values: Mask) -> list[Mask]:
    return np.split(values, np.cumsum([c.size for c in belief])[:-1])

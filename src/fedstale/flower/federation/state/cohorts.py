"""An estimator for clients that join at different times.

A belief counts rounds from its first one. A client that joins in round 30 has not missed 29 rounds, so clients that
join together have a belief of their own.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, EstimatesMixing, Estimator, Ids, Mask
from fedstale.flower.federation.state.resize import resize
from fedstale.lab.runs.codec import children, rebuilt


class Cohort(NamedTuple):
    """The belief about clients that joined in the same round."""

    size: int
    belief: Any


@dataclass(frozen=True)
class Beliefs:
    """The beliefs about all cohorts; clients are in the order in which they joined."""

    estimator: Estimator
    cohorts: tuple[Cohort, ...]

    def split(self, values: Mask) -> list[Mask]:
        """The values (n,) of each cohort."""
        return np.split(values, np.cumsum([c.size for c in self.cohorts])[:-1])

    def resized(self, old: Ids, new: Ids) -> "Beliefs":
        """The beliefs about clients `new` instead of `old`: newcomers are one more cohort, at the end."""
        kept = []
        for cohort, stays in zip(self.cohorts, self.split(np.isin(old, new)), strict=True):
            stay, size = np.flatnonzero(stays), cohort.size
            if len(stay):
                belief = resize(cohort.belief, self.estimator.init, np.arange(size), stay)
                kept.append(Cohort(len(stay), belief))
        newcomers = len(np.setdiff1d(new, old))
        joined = [Cohort(newcomers, self.estimator.init(newcomers))] if newcomers else []
        return Beliefs(self.estimator, (*kept, *joined))

    def saved(self) -> tuple[Cohort, ...]:
        return self.cohorts

    def restored(self, saved: Any) -> "Beliefs":
        """The beliefs that were saved, however many cohorts there were; older versions saved a single belief."""
        if not (isinstance(saved, tuple) and all(isinstance(c, tuple) and len(c) == 2 for c in saved)):
            saved = [(sum(c.size for c in self.cohorts), saved)]
        cohorts = (Cohort(size, _typed(belief, self.estimator.init(size))) for size, belief in saved)
        return Beliefs(self.estimator, tuple(cohorts))


def _typed(plain: Any, like: Any) -> Any:
    """What was saved, with the types of `like`."""
    parts, kinds = children(plain), dict(children(like) or ())
    if parts is None or not kinds:
        return plain
    return rebuilt(like, {key: _typed(value, kinds.get(key)) for key, value in parts})


@dataclass(frozen=True)
class Cohorts:
    """The same estimator for every cohort of clients."""

    estimator: Estimator

    def init(self, n: int) -> Beliefs:
        return Beliefs(self.estimator, (Cohort(n, self.estimator.init(n)),))

    def probs(self, belief: Beliefs) -> Array:
        return np.concatenate([self.estimator.probs(c.belief) for c in belief.cohorts])

    def mixing(self, belief: Beliefs) -> Array:
        if not isinstance(self.estimator, EstimatesMixing):
            return np.zeros(sum(c.size for c in belief.cohorts), np.float32)
        return np.concatenate([self.estimator.mixing(c.belief) for c in belief.cohorts])

    def observe(self, belief: Beliefs, heard: Mask) -> Beliefs:
        parts = zip(belief.cohorts, belief.split(heard), strict=True)
        observed = (Cohort(c.size, self.estimator.observe(c.belief, part)) for c, part in parts)
        return Beliefs(self.estimator, tuple(observed))

"""Beliefs about p_i, the chance that an update of client i is here."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Mask, part, require


@part
class Known:
    """p_i as given: by you, or by the simulation, which knows its own participation and channel."""

    p: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        if self.p is not None:
            p = np.array(self.p, np.float32)
            ok = p.ndim == 1 and bool(((p >= 0) & (p <= 1)).all())
            require(ok, f"p must be one probability in [0, 1] per client, got {self.p}")
            p.flags.writeable = False
            object.__setattr__(self, "p", p)

    def told(self, probs: Array) -> "Known":
        return self if self.p is not None else Known(probs)

    def init(self, n: int) -> None:
        require(self.p is not None, "Known() has no probabilities: give them, or use it in simulate")
        got = len(np.asarray(self.p))
        require(got == n, f"Known needs one probability per client: {n} clients, got {got}")

    def probs(self, belief: None) -> Array:
        return np.asarray(self.p, np.float32)

    def observe(self, belief: None, heard: Mask) -> None:
        return None


class IntervalBelief(NamedTuple):
    mean: npt.NDArray[np.float64]  # (n,) ω_i, mean length of the completed intervals; 1 before the first
    closed: npt.NDArray[np.int64]  # (n,) how many are complete
    since: npt.NDArray[np.int64]  # (n,) rounds since the last one closed


@part
class Intervals:
    """p̂_i = 1 / mean interval between participations, from the rounds before this one.

    An interval counts the rounds since the last close, the participating one included. It closes on
    participation, or after `cutoff` misses in a row (None: never), which bounds 1 / p̂_i by the cutoff.
    Wang and Ji, A Lightweight Method for Tackling Unknown Participation Statistics (FedAU), ICLR 2024.
    """

    cutoff: int | None = 50

    def __post_init__(self) -> None:
        ok = self.cutoff is None or self.cutoff >= 1
        require(ok, f"cutoff must be at least 1 or None, got {self.cutoff}")

    def init(self, n: int) -> IntervalBelief:
        return IntervalBelief(np.ones(n), np.zeros(n, np.int64), np.zeros(n, np.int64))

    def probs(self, belief: IntervalBelief) -> Array:
        return (1 / belief.mean).astype(np.float32)

    def observe(self, belief: IntervalBelief, heard: Mask) -> IntervalBelief:
        since = belief.since + 1
        close = heard if self.cutoff is None else heard | (since >= self.cutoff)
        closed = belief.closed + close
        mean = belief.mean + np.where(close, (since - belief.mean) / np.maximum(closed, 1), 0.0)
        return IntervalBelief(mean, closed, np.where(close, 0, since))

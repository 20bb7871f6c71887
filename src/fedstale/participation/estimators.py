"""Beliefs about p_i, the chance that an update of client i is here."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Count, Mask, Natural, keep, keep_numbers, part, require

__all__ = ["BetaBernoulli", "Intervals", "Known", "Transitions"]

Counts = npt.NDArray[np.int32]


@part
class Known:
    """p_i as given: by you, or by the simulation, which knows its own participation and channel.

    `correlation` is λ_i, where it is known: 0 if left out and the participation has none.
    """

    p: npt.ArrayLike | None = None
    correlation: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        for name, lowest, values in (("p", 0, self.p), ("correlation", -1, self.correlation)):
            if values is not None:
                with np.errstate(over="ignore"):  # what overflows is infinite, and refused
                    given = np.array(values, np.float32)
                ok = given.ndim == 1 and bool(((given >= lowest) & (given <= 1)).all())
                require(ok, f"{name} must be one number in [{lowest}, 1] per client, got {values}")
                keep(self, name, given)

    @property
    def needs_truth(self) -> bool:
        return self.p is None

    def with_truth(self, probs: Array, mixing: Array) -> "Known":
        p, λ = self.p, self.correlation
        return Known(probs if p is None else p, mixing if λ is None else λ)

    def init(self, n: int) -> None:
        require(self.p is not None, "Known() has no probabilities: give them, or use it in simulate")
        for what, values in (("probability", self.p), ("correlation", self.correlation)):
            got = n if values is None else len(np.asarray(values))
            require(got == n, f"Known needs one {what} per client: {n} clients, got {got}")

    def probs(self, belief: None) -> Array:
        return np.asarray(self.p, np.float32)

    def mixing(self, belief: None) -> Array:
        return np.zeros_like(self.p) if self.correlation is None else np.asarray(self.correlation, np.float32)

    def observe(self, belief: None, heard: Mask) -> None:
        return None


class IntervalBelief(NamedTuple):
    """What is known of the intervals between a client's visits."""

    t: int  # rounds observed
    closed: Counts  # (n,) completed intervals
    last: Counts  # (n,) round in which the last one closed, 0 before: the sum of their lengths


@part
class Intervals:
    """p̂_i = 1 / mean interval between participations, from the rounds before this one.

    An interval counts the rounds since the last close, the participating one included. It closes on
    participation, or after `cutoff` misses in a row (None: never), which bounds 1 / p̂_i by the cutoff.
    Wang and Ji, A Lightweight Method for Tackling Unknown Participation Statistics (FedAU), ICLR 2024.
    """

    cutoff: Count | None = 50

    def init(self, n: int) -> IntervalBelief:
        return IntervalBelief(0, np.zeros(n, np.int32), np.zeros(n, np.int32))

    def probs(self, belief: IntervalBelief) -> Array:
        """1 / ω_i; 1 before the first interval closes."""
        return np.asarray(np.divide(np.maximum(belief.closed, 1), np.maximum(belief.last, 1), dtype=np.float32))

    def observe(self, belief: IntervalBelief, heard: Mask) -> IntervalBelief:
        t = belief.t + 1
        since = t - belief.last
        close = heard if self.cutoff is None else heard | (since >= self.cutoff)
        return IntervalBelief(t, belief.closed + close, belief.last + since * close)


class BetaBelief(NamedTuple):
    """How often each client was heard."""

    t: int  # rounds observed
    heard: Counts  # (n,) in how many of them the client was


@part
class BetaBernoulli:
    """p̂_i = (count_i + n0) / (t + n0 + m0): the share of the rounds so far, and a beta prior.

    Quick where rounds are independent, and never 0. `n0` and `m0` are rounds with and without the client
    that are imagined before the first: one number for all clients or one per client.
    Rodio et al., Federated Learning under Heterogeneous and Correlated Client Availability (CA-Fed), 2023.
    """

    n0: npt.ArrayLike = 1.0
    m0: npt.ArrayLike = 1.0

    def __post_init__(self) -> None:
        keep_numbers(self, "n0", "above 0 and finite")
        keep_numbers(self, "m0", "at least 0 and finite")

    def after(self, history: Mask) -> "BetaBernoulli":
        """The estimator that has already seen these rounds, (rounds, n)."""
        return BetaBernoulli(self.n0 + history.sum(axis=0), self.m0 + (~history).sum(axis=0))

    def init(self, n: int) -> BetaBelief:
        for name, prior in (("n0", np.asarray(self.n0)), ("m0", np.asarray(self.m0))):
            ok = prior.ndim == 0 or len(prior) == n
            require(ok, f"{name} must be one number or one for each of {n} clients, got {prior.size}")
        return BetaBelief(0, np.zeros(n, np.int32))

    def probs(self, belief: BetaBelief) -> Array:
        n0, m0 = np.asarray(self.n0), np.asarray(self.m0)
        return np.asarray((belief.heard + n0) / (belief.t + n0 + m0), np.float32)

    def observe(self, belief: BetaBelief, heard: Mask) -> BetaBelief:
        return BetaBelief(belief.t + 1, belief.heard + heard)


class TransitionBelief(NamedTuple):
    """How often each client came, stayed and left."""

    t: int  # rounds observed
    on: Mask  # (n,) who was heard in the last of them
    left: Array  # (n,) rounds before the last with the client: it could stay or go
    stayed: Array  # (n,) on → on
    came: Array  # (n,) off → on; in float32, which counts to 16 million


@part
class Transitions:
    """Counts what follows a round with the client and what follows one without: both π_i and λ_i.

    P̂(a → b) = (count(a → b) + prior[a][b]) / (count(a) + Σ_b prior[a][b]), off = 0 and on = 1; then
    π̂ = (1-p00) / (2-p00-p11) and λ̂ = p00 + p11 - 1. Right for clients that stay or stay away for a while,
    where BetaBernoulli knows nothing of λ; slow for those that rarely change. `prior` is (2, 2), or
    (n, 2, 2) for one per client: transitions imagined before the first round. In a simulation,
    `warmup_rounds` rounds of the same participation are observed before round 1.
    Rodio et al., Federated Learning under Heterogeneous and Correlated Client Availability (CA-Fed), 2023.
    """

    prior: npt.ArrayLike = ((1.0, 1.0), (1.0, 1.0))
    warmup_rounds: Natural = 0

    def __post_init__(self) -> None:
        prior = np.array(self.prior, np.float64)
        positive = bool(((prior > 0) & (prior < np.inf)).all())
        ok = prior.ndim in (2, 3) and prior.shape[-2:] == (2, 2) and positive
        require(ok, f"prior must be (2, 2) or (clients, 2, 2) numbers above 0, got {self.prior!r}")
        keep(self, "prior", prior)

    def after(self, history: Mask) -> "Transitions":
        """The estimator that has already seen the transitions of these rounds, (rounds, n)."""
        before, then = history[:-1], history[1:]
        seen = np.array([[(a & b).sum(axis=0) for b in (~then, then)] for a in (~before, before)])  # (2, 2, n)
        return Transitions(self.prior + np.moveaxis(seen, -1, 0), self.warmup_rounds)

    def warmed_up(self, rows: Iterator[Mask]) -> "Transitions":
        """The estimator after its warm-up rounds, with none left to observe."""
        if self.warmup_rounds == 0:
            return self
        return Transitions(self.prior).after(np.array([*islice(rows, self.warmup_rounds)]))

    def init(self, n: int) -> TransitionBelief:
        prior = np.asarray(self.prior)
        one_each = prior.ndim == 2 or len(prior) == n
        require(one_each, f"prior must be one or one for each of {n} clients, got {len(prior)}")
        zeros = np.zeros(n, np.float32)
        return TransitionBelief(0, np.zeros(n, np.bool_), zeros, zeros, zeros)

    def probs(self, belief: TransitionBelief) -> Array:
        come, go = self._rates(belief)
        go += come
        come /= go
        return come  # π̂ = p01 / (p01 + p10)

    def mixing(self, belief: TransitionBelief) -> Array:
        """(n,) λ̂"""
        come, go = self._rates(belief)
        come += go
        return 1 - come  # 1 - p01 - p10

    def observe(self, belief: TransitionBelief, heard: Mask) -> TransitionBelief:
        t, on, left, stayed, came = belief
        if t == 0:
            return belief._replace(t=1, on=heard.copy())
        return TransitionBelief(t + 1, heard.copy(), left + on, stayed + (on & heard), came + (heard > on))

    def _rates(self, belief: TransitionBelief) -> tuple[Array, Array]:
        """P̂(off → on) = 1 - p00 and P̂(on → off) = 1 - p11."""
        t, _, left, stayed, came = belief
        (n00, n01), (n10, n11) = np.moveaxis(np.asarray(self.prior, np.float32), (-2, -1), (0, 1))
        come, go = came + n01, left - stayed
        come /= (n00 + n01 + max(t - 1, 0)) - left
        go += n10
        go /= left + (n10 + n11)
        return come, go

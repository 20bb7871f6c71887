"""FADAS: a buffer of updates as the gradient of an adaptive server, which takes smaller steps with old ones.

Wang et al., FADAS: Towards Federated Adaptive Asynchronous Optimization, ICML 2024.
"""

from typing import Annotated, NamedTuple

import numpy as np

from fedstale.core import Array, Floats, Natural, Positive, Range, Round, part, weighted_sum


class Moments(NamedTuple):
    """Running means of the buffer's mean and of its square."""

    m: Floats  # (d,)
    v: Floats  # (d,)
    largest: Floats  # (d,) v̂, the largest v so far


@part
class FADAS:
    """Δ = mean_S Δ_i; m ← β₁m + (1-β₁)Δ; v ← β₂v + (1-β₂)Δ²; v̂ ← max(v̂, v); step = η_t m / (√v̂ + ε).

    η_t = η if no update is older than `delay` steps, else min(η, 1 / oldest age). With a server other than
    `sgd` there would be two optimisers. It weighs all clients alike, whatever a_i and however often they come.
    """

    lr: Positive = 0.01  # η
    beta1: Annotated[float, Range("in [0, 1)")] = 0.9
    beta2: Annotated[float, Range("in [0, 1)")] = 0.99
    epsilon: Positive = 1e-8
    delay: Natural = 10  # τ_c

    def init(self, n: int, d: int) -> Moments:
        return Moments(np.zeros(d), np.zeros(d), np.zeros(d))

    def aggregate(self, state: Moments, r: Round) -> tuple[Array, Moments]:
        if len(r.clients) == 0:
            return np.zeros_like(r.params), state
        count = weighted_sum(np.ones(len(r.clients)), r.arrived.astype(np.float32))  # (d,) or (1,)
        Δ = weighted_sum(np.ones(len(r.clients)), r.received()) / np.maximum(count, 1)
        m = self.beta1 * state.m + (1 - self.beta1) * Δ
        v = self.beta2 * state.v + (1 - self.beta2) * Δ * Δ
        largest, oldest = np.maximum(state.largest, v), int(r.staleness().max())
        η = self.lr if oldest <= self.delay else min(self.lr, 1 / oldest)
        return (η * m / (np.sqrt(largest) + self.epsilon)).astype(np.float32), Moments(m, v, largest)

"""FedAvg and FedStale whose steps depend on no client by more than a stated length, for differential privacy.

A client's updates enter FedStale's steps in every later round through the memory. What makes noise expensive is not
that, but that Δ_i and h_i are bounded apart and amplified together by 1 / p_i. PrivateFedStale bounds their
difference, which is small where the memory is good. Differences are clipped in DIFF2 (Murata and Suzuki, ICML 2023)
and Clip21 (Khirirat et al., arXiv 2305.18929) too, there without inverse weights.
"""

from typing import ClassVar

import numpy as np

from fedstale.core import Array, Floats, Ids, Mask, PositiveFinite, Round, Share, part
from fedstale.memory import Coding, Float32, Memory


@part
class PrivateFedAvg:
    """step = Σ_S a_i clip(Δ_i, C) / Σ_i a_i p_i, with C = `clip`.

    The denominator is fixed: one that depended on who came would tell about the others. Biased as FedAvg is.
    """

    clip: PositiveFinite
    inverse_weighting: ClassVar[bool] = True

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        step = np.zeros(len(r.params))
        for weight, update in zip(self._weights(r.clients, r.weights, r.probs), r.received(), strict=True):
            step += weight * clipped(update, self.clip)
        return step.astype(np.float32), state

    def sensitivity(self, state: None, clients: Ids, weights: Array, probs: Array) -> Floats:
        """(n,) how far each client can move the step of a round in which these clients are heard."""
        rows = np.zeros(len(weights))
        rows[clients] = self.clip * self._weights(clients, weights, probs)
        return rows

    def _weights(self, clients: Ids, weights: Array, probs: Array) -> Floats:
        a = weights.astype(np.float64)
        return a[clients] / float(a @ probs)


@part
class PrivateFedStale:
    """FedStale with bounded influence: C = `clip`, C_e = `difference_clip`, c_i = min(a_i / p_i, `max_weight`).

    e_i = clip(Δ_i - β h_i, C_e); step = β Σ_i a_i h_i + Σ_S c_i e_i; then h_i ← clip(β h_i + e_i, C) for i in S.

    Without a `difference_clip` the updates themselves are clipped at C, and the rest is FedStale. β = 0 is
    Unbiased. The steps are unbiased where no clip and no cap cuts.
    """

    clip: PositiveFinite
    beta: Share = 1.0
    difference_clip: PositiveFinite | None = None
    max_weight: PositiveFinite | None = None
    memory: Coding = Float32()
    inverse_weighting: ClassVar[bool] = True

    def init(self, n: int, d: int) -> Memory:
        return Memory.zeros(n, d, self.memory)

    def aggregate(self, memory: Memory, r: Round) -> tuple[Array, Memory]:
        c = self._weights(r.clients, r.weights, r.probs)
        step, rows = self.beta * memory.weighted_sum(r.weights), np.zeros_like(r.updates)
        for k, i in enumerate(r.clients.tolist()):
            e, rows[k] = self._sent(r.updates[k], memory.row(i), r.arrived[k])
            step += c[k] * e
        memory.remember(r._replace(updates=rows))
        return step.astype(np.float32), memory

    def _sent(self, Δ: Array, h: Array, arrived: Mask) -> tuple[Array, Array]:
        """What counts of a client's update beside its memory, Δ - β h, and its next memory: both bounded."""
        stale = np.float32(self.beta) * h
        if self.difference_clip is None:
            update = clipped(np.where(arrived, Δ, h), self.clip)
            return np.where(arrived, update - stale, np.float32(0)), update
        e = clipped(np.where(arrived, Δ - stale, np.float32(0)), self.difference_clip)
        return e, clipped(np.where(arrived, stale + e, h), self.clip)

    def forget(self, memory: Memory, clients: Ids) -> Memory:
        return memory.forget(clients)

    def sensitivity(self, memory: Memory, clients: Ids, weights: Array, probs: Array) -> Floats:
        """(n,) how far each client can move the step of a round in which these clients are heard.

        A remembered client moves it by β a_i C while it is away. One that comes moves it by c_i C_e more, or, where
        updates are clipped, by (c_i + β |c_i − a_i|) C in all: its h_i counts c_i − a_i less than Δ_i.
        """
        a, seen = weights.astype(np.float64), memory.written > 0
        rows = np.where(seen, self.beta * a * self.clip, 0.0)
        c = self._weights(clients, weights, probs)
        if self.difference_clip is not None:
            rows[clients] += c * self.difference_clip
        else:
            rows[clients] = self.clip * (c + np.where(seen[clients], self.beta * np.abs(c - a[clients]), 0.0))
        return rows

    def _weights(self, clients: Ids, weights: Array, probs: Array) -> Floats:
        """(m,) c_i of these clients."""
        c = weights[clients].astype(np.float64) / probs[clients]
        return c if self.max_weight is None else np.minimum(c, self.max_weight)


def clipped(vector: Array, most: float) -> Array:
    """The vector, shortened to this length if it is longer."""
    length = float(np.sqrt(np.einsum("i,i", vector, vector, dtype=np.float64)))
    return vector if length <= most else (vector * (most / length)).astype(np.float32)

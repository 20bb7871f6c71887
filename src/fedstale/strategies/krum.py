"""Krum: the updates that are nearest to their neighbours.

Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017.
"""

from typing import Annotated

import numpy as np

from fedstale.core import Array, Count, Ids, Range, Round, part
from fedstale.memory import Coding, Float32, Memory, latest


@part
class Krum:
    """score_i = Σ ‖Δ_i - Δ_j‖² over the k - f - 2 nearest j; step = the mean of the `keep` least scores.

    k is how many updates there are, f = ⌊liars · k⌋ how many of them may lie; the scores need k ≥ 2 f + 3.
    keep = 1 is Krum, more is multi-Krum; all are averaged alike, whatever a_i and p_i. It throws most updates
    away, so it is slow where honest clients differ. `stale` as for TrimmedMean. What did not arrive counts as 0.
    """

    liars: Annotated[float, Range("a share of at least 0 and below 0.5")] = 0.2
    keep: Count = 1
    stale: bool = False
    memory: Coding = Float32()

    def init(self, n: int, d: int) -> Memory | None:
        return Memory.zeros(n, d, self.memory) if self.stale else None

    def aggregate(self, memory: Memory | None, r: Round) -> tuple[Array, Memory | None]:
        rows = np.nan_to_num(latest(memory, r))  # (k, d)
        if (k := len(rows)) == 0:
            return np.zeros(len(r.params), np.float32), memory
        apart = np.array([np.square(rows - row).sum(axis=1) for row in rows])  # (k, k) ‖Δ_i - Δ_j‖²
        near = min(max(k - int(self.liars * k) - 2, 1), k)
        scores = np.sort(apart, axis=1)[:, 1 : 1 + near].sum(axis=1)  # without itself
        best = np.argsort(scores, kind="stable")[: self.keep]
        return rows[best].mean(axis=0).astype(np.float32), memory

    def forget(self, memory: Memory | None, clients: Ids) -> Memory | None:
        return None if memory is None else memory.forget(clients)

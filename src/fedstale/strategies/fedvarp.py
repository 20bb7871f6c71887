"""FedVARP as published: SAGA-like variance reduction with uniform means.

Jhunjhunwala et al., FedVARP: Tackling the Variance Due to Partial Client Participation, UAI 2022.
"""

import numpy as np

from fedstale.core import Array, Round, part, weighted_sum
from fedstale.memory import Memory


@part
class FedVARP:
    """step = mean_S(Δ_i - h_i) + mean_N(h_i); then h_i ← Δ_i for i in S.

    A baseline: biased when some clients come more often than others, and blind to the weights a_i.
    The unbiased version is FedStale(beta=1).
    """

    def init(self, n: int, d: int) -> Memory:
        return Memory.zeros(n, d)

    def aggregate(self, memory: Memory, r: Round) -> tuple[Array, Memory]:
        n, ones = len(r.weights), np.ones(len(r.clients))
        mean_h = memory.weighted_sum(np.full(n, 1 / n, np.float32)).copy()  # (d,) mean over all n
        change = np.where(r.arrived, r.updates - memory.rows[r.clients], np.float32(0))  # (m, d)
        count = weighted_sum(ones, r.arrived.astype(np.float32))  # (d,) or (1,)
        step = weighted_sum(ones, change) / np.maximum(count, 1) + mean_h
        for k, i in enumerate(r.clients.tolist()):
            memory.write(i, r.updates[k], r.arrived[k], r.t)
        return step.astype(np.float32), memory

"""MIFA: always step with the latest update of everybody.

Gu et al., Fast Federated Learning in the Presence of Arbitrary Device Unavailability, NeurIPS 2021.
"""

import numpy as np

from fedstale.core import Array, Round, part
from fedstale.memory import Memory


@part
class MIFA:
    """h_i ← Δ_i for i in S; then step = Σ_i a_i h_i.

    Needs no p_i and has little variance, but an absent client goes on pushing with an old update.
    """

    def init(self, n: int, d: int) -> Memory:
        return Memory.zeros(n, d)

    def aggregate(self, memory: Memory, r: Round) -> tuple[Array, Memory]:
        step = memory.weighted_sum(r.weights)  # written to by the writes below
        for k, i in enumerate(r.clients.tolist()):
            memory.write(i, r.updates[k], r.arrived[k], r.t)
        return step.astype(np.float32), memory

"""FedLaAvg: of the clients that are there, train those that were used longest ago; step with everybody's latest.

Yan et al., Federated Optimization Under Intermittent Client Availability, INFORMS Journal on Computing, 2024
(Distributed Non-Convex Optimization with Sublinear Speedup under Intermittent Client Availability, 2020).
"""

import numpy as np

from fedstale.core import Array, Availability, Count, Ids, Round, part
from fedstale.memory import Coding, Float32, Memory


@part
class FedLaAvg:
    """The `clients` available ones whose h_i is oldest train; h_i ← Δ_i for them, then step = Σ_i a_i h_i.

    MIFA's step; MIFA trains all who are there, and with at least as many `clients` as ever come the two have the
    same bits. Of equals the first client trains. It is biased by stale updates, as MIFA is.
    """

    clients: Count
    memory: Coding = Float32()

    def init(self, n: int, d: int) -> Memory:
        return Memory.zeros(n, d, self.memory)

    def select(self, memory: Memory, a: Availability) -> tuple[Ids, Memory]:
        oldest = np.argsort(memory.written[a.clients], kind="stable")[: self.clients]
        return np.sort(a.clients[oldest]), memory

    def aggregate(self, memory: Memory, r: Round) -> tuple[Array, Memory]:
        memory.remember(r)  # h_i ← Δ_i for i in S
        return memory.weighted_sum(r.weights).astype(np.float32), memory  # Σ_i a_i h_i

    def forget(self, memory: Memory, clients: Ids) -> Memory:
        return memory.forget(clients)

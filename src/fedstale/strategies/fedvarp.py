"""FedVARP as published: SAGA-like variance reduction with uniform means.

Jhunjhunwala et al., FedVARP: Tackling the Variance Due to Partial Client Participation, UAI 2022.
"""

import numpy as np

from fedstale.core import Array, Ids, Message, Order, Round, Total, part, weighted_sum
from fedstale.memory import Coding, Float32, Memory


@part
class FedVARP:
    """step = mean_S(Δ_i - h_i) + mean_N(h_i); then h_i ← Δ_i for i in S.

    A baseline: biased when some clients come more often than others, and blind to the weights a_i.
    The unbiased version is FedStale(beta=1).
    """

    memory: Coding = Float32()

    def init(self, n: int, d: int) -> Memory:
        return Memory.zeros(n, d, self.memory)

    def aggregate(self, memory: Memory, r: Round) -> tuple[Array, Memory]:
        n, ones = len(r.weights), np.ones(len(r.clients))
        r = r._replace(weights=np.full(n, 1 / n, np.float32))
        mean_h, change = memory.weighted_sum(r.weights).copy(), memory.nothing()  # (d,) mean over all n
        memory.correct(change, r, fresh=1, stale=1)  # Σ_S (Δ_i - h_i); then h_i ← Δ_i
        count = weighted_sum(ones, r.arrived.astype(np.float32))  # (d,) or (1,): who of S got through
        return (change / np.maximum(count, 1) + mean_h).astype(np.float32), memory

    def opened(self, n: int, d: int) -> None:
        return None

    def orders(self, state: None, r: Round) -> list[Order]:
        return [Order(1 / len(r.weights))] * len(r.clients)

    def message(self, h: Array, update: Array, order: Order) -> Message:
        return Message(order.weight * (update.astype(np.float64) - h), update)

    def close(self, state: None, total: Total, r: Round) -> tuple[Array, None]:
        mean = total.sums * (len(r.weights) / max(len(r.clients), 1))  # mean_S(Δ_i - h_i)
        return (mean + total.stale).astype(np.float32), None

    def forget(self, memory: Memory, clients: Ids) -> Memory:
        return memory.forget(clients)

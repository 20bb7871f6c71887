"""MIFA: always step with the latest update of everybody.

Gu et al., Fast Federated Learning in the Presence of Arbitrary Device Unavailability, NeurIPS 2021.
"""

import numpy as np

from fedstale.core import Array, Ids, Message, Order, Round, Total, orders, part
from fedstale.memory import Coding, Float32, Memory


@part
class MIFA:
    """h_i ← Δ_i for i in S; then step = Σ_i a_i h_i.

    Needs no p_i and has little variance, but an absent client goes on pushing with an old update.
    """

    memory: Coding = Float32()

    def init(self, n: int, d: int) -> Memory:
        return Memory.zeros(n, d, self.memory)

    def aggregate(self, memory: Memory, r: Round) -> tuple[Array, Memory]:
        memory.remember(r)  # h_i ← Δ_i for i in S
        return memory.weighted_sum(r.weights).astype(np.float32), memory  # Σ_i a_i h_i

    def opened(self, n: int, d: int) -> None:
        return None

    def orders(self, state: None, r: Round) -> list[Order]:
        return orders(r)

    def message(self, h: Array, update: Array, order: Order) -> Message:
        return Message(memory=update)

    def close(self, state: None, total: Total, r: Round) -> tuple[Array, None]:
        return (total.stale + total.change).astype(np.float32), None

    def forget(self, memory: Memory, clients: Ids) -> Memory:
        return memory.forget(clients)

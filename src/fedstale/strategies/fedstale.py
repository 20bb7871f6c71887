"""FedStale: fresh updates, corrected by a share β of the remembered ones.

Rodio and Neglia, FedStale: leveraging Stale Updates in Federated Learning, ECAI 2024, Algorithm 2.
"""

from typing import ClassVar

import numpy as np

from fedstale.core import Array, Ids, Message, Order, Round, Share, Total, orders, part, require
from fedstale.memory import Coding, Float32, Memory


@part
class FedStale:
    """step = β Σ_i a_i h_i + Σ_S (a_i / p_i)(Δ_i - β h_i); then h_i ← Δ_i for i in S.

    Unbiased for every β. β = 0 is Unbiased, β = 1 is (unbiased) FedVARP. A large β pays off when the data of
    the clients differ, a small one when the memory is old; SelfTuning learns it online. In a round without
    clients the stale part β Σ_i a_i h_i is still applied, as in the paper; the authors' released code makes
    no step then, which is `skip_empty_rounds`.
    """

    beta: Share = 0.5
    memory: Coding = Float32()
    skip_empty_rounds: bool = False
    inverse_weighting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        word = isinstance(self.beta, str)
        require(not word, f'beta must be a number in [0, 1], got {self.beta!r}; SelfTuning, kind "auto", learns it')

    def init(self, n: int, d: int) -> Memory:
        return Memory.zeros(n, d, self.memory)  # h_i = 0

    def aggregate(self, memory: Memory, r: Round) -> tuple[Array, Memory]:
        if self.skip_empty_rounds and len(r.clients) == 0:
            return np.zeros_like(r.params), memory
        β, c = self.beta, r.inverse()  # (m,) c_i = a_i / p_i
        step = β * memory.weighted_sum(r.weights)  # (d,) in float64: β Σ_i a_i h_i
        memory.correct(step, r, fresh=c, stale=β)  # step += Σ_S c_i (Δ_i - β h_i); then h_i ← Δ_i for i in S
        return step.astype(np.float32), memory

    def opened(self, n: int, d: int) -> None:
        return None

    def orders(self, state: None, r: Round) -> list[Order]:
        return orders(r, beta=self.beta, inverse=True)

    def message(self, h: Array, update: Array, order: Order) -> Message:
        rest = update - order.beta * h.astype(np.float64)
        return Message(order.weight * order.inverse * rest, update)

    def close(self, state: None, total: Total, r: Round) -> tuple[Array, None]:
        if self.skip_empty_rounds and len(r.clients) == 0:
            return np.zeros_like(r.params), None
        return (self.beta * total.stale + total.sums).astype(np.float32), None

    def forget(self, memory: Memory, clients: Ids) -> Memory:
        return memory.forget(clients)

"""FedStale: fresh updates, corrected by a share β of the remembered ones.

Rodio and Neglia, FedStale: leveraging Stale Updates in Federated Learning, ECAI 2024, Algorithm 2.
"""

from typing import ClassVar

import numpy as np

from fedstale.core import Array, Round, part, require
from fedstale.memory import Coding, Float32, Memory


@part
class FedStale:
    """step = β Σ_i a_i h_i + Σ_S (a_i / p_i)(Δ_i - β h_i); then h_i ← Δ_i for i in S.

    Unbiased for every β. β = 0 is Unbiased, β = 1 is (unbiased) FedVARP. A large β pays off when the
    data of the clients differ, a small one when the memory is old.
    """

    beta: float = 0.5
    memory: Coding = Float32()
    inverse_weighting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 <= self.beta <= 1, f"beta must be in [0, 1], got {self.beta}")

    def init(self, n: int, d: int) -> Memory:
        return Memory.zeros(n, d, self.memory)

    def aggregate(self, memory: Memory, r: Round) -> tuple[Array, Memory]:
        β, c = self.beta, r.inverse()  # (m,) c = a_i / p_i
        step = β * memory.weighted_sum(r.weights)  # (d,) float64: β Σ a_i h_i, also when S is empty
        memory.correct(step, r, fresh=c, stale=β)  # += Σ_S c_i (Δ_i - β h_i); then h_i ← Δ_i
        return step.astype(np.float32), memory

"""FedStale: fresh updates, corrected by a share β of the remembered ones.

Rodio and Neglia, FedStale: leveraging Stale Updates in Federated Learning, ECAI 2024, Algorithm 2.
"""

from typing import ClassVar

import numpy as np

from fedstale.core import Array, Round, part, require
from fedstale.memory import Memory


@part
class FedStale:
    """step = β Σ_i a_i h_i + Σ_S (a_i / p_i)(Δ_i - β h_i); then h_i ← Δ_i for i in S.

    Unbiased for every β. β = 0 is Unbiased, β = 1 is (unbiased) FedVARP. A large β pays off when the
    data of the clients differ, a small one when the memory is old.
    """

    beta: float = 0.5
    inverse_weighting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 <= self.beta <= 1, f"beta must be in [0, 1], got {self.beta}")

    def init(self, n: int, d: int) -> Memory:
        return Memory.zeros(n, d)

    def aggregate(self, memory: Memory, r: Round) -> tuple[Array, Memory]:
        β, h, Δ = self.beta, memory.rows, r.updates
        step = β * memory.weighted_sum(r.weights)  # (d,) float64: β Σ a_i h_i, also when S is empty
        for k, (i, c) in enumerate(zip(r.clients.tolist(), r.inverse().tolist(), strict=True)):
            correction = c * (Δ[k] - β * h[i])  # c = a_i / p_i
            step += correction if r.arrived[k].all() else np.where(r.arrived[k], correction, 0)
            memory.write(i, Δ[k], r.arrived[k], r.t)
        return step.astype(np.float32), memory

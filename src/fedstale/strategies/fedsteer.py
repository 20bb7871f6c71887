"""FedSteer: the updates of a few core clients are remembered, and those of all others as their combinations.

Zhang et al., FedSteer, UAI 2026, arXiv 2606.10124. The core clients are drawn at random here.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from fedstale.core import Array, Count, Floats, Ids, Positive, Round, part, stream, weighted_sum


class Steering(NamedTuple):
    """The memory: full updates of the core, coefficients of everybody."""

    places: Ids  # (n,) the row of each core client, -1 for the others
    rows: Array  # (k, d) h_j, the last update of each core client
    coefficients: Floats  # (n, k) s_i


@part
class FedSteer:
    """step = Σ_i a_i Q s_i + Σ_S (a_i / p_i)(Δ_i - Q s_i) with Q = [h_j / k], j in the core C of k clients.

    Then s_i ← (QᵀQ + λI)⁻¹ Qᵀ Δ_i for i in S, with λ = ridge tr(QᵀQ) / k, and h_j ← Δ_j for core clients in S.
    Unbiased; the memory is k updates and N k numbers instead of N updates, good where updates are alike. In the
    released code the step has the s_i of this round, which is `released`: it is not unbiased.
    """

    core: Count = 10  # k
    ridge: Positive = 0.01
    released: bool = False
    seed: int = 0  # of the draw of the core clients
    inverse_weighting: ClassVar[bool] = True

    def init(self, n: int, d: int) -> Steering:
        places, k = np.full(n, -1), min(self.core, n)
        places[stream(self.seed, "core").permutation(n)[:k]] = np.arange(k)
        return Steering(places, np.zeros((self.core, d), np.float32), np.zeros((n, self.core)))

    def aggregate(self, state: Steering, r: Round) -> tuple[Array, Steering]:
        places, rows, before = state
        Q, Δ, after = rows / np.float64(self.core), r.received(), before.copy()  # (k, d), (m, d), (n, k)
        after[r.clients] = self._fitted(Q, Δ)
        s = after if self.released else before
        step = weighted_sum(weighted_sum(r.weights, s), Q)  # Σ_i a_i Q s_i
        for i, c, row, arrived in zip(r.clients.tolist(), r.inverse().tolist(), Δ, r.arrived, strict=True):
            step += c * np.where(arrived, row - weighted_sum(s[i], Q), 0)
            if (j := places[i]) >= 0:
                rows[j] = np.where(arrived, row, rows[j])
        return step.astype(np.float32), Steering(places, rows, after)

    def _fitted(self, Q: Floats, Δ: Array) -> Floats:
        """(m, k) the coefficients of these updates; 0 while the memory is empty."""
        gram = np.einsum("kd,jd->kj", Q, Q)
        λ = self.ridge * np.trace(gram) / len(Q)
        right = np.einsum("kd,md->km", Q, Δ)
        return np.linalg.solve(gram + λ * np.eye(len(Q)), right).T if λ > 0 else 0 * right.T

"""AdaFed: the updates that came, weighted by inverse availability, as a mean.

Tan et al., AdaFed: Optimizing Participation-Aware Federated Learning with Adaptive Aggregation Weights,
IEEE TNSE 2022; with every available client taking part, as in Rodio, thesis, 2024, section 2.5.
"""

from typing import ClassVar

import numpy as np

from fedstale.core import Array, Round, part, weighted_sum


@part
class AdaFed:
    """step = Σ_S (a_i / p_i) Δ_i / Σ_S (a_i / p_i). As steady as FedAvg, and nearer to the objective.

    Still biased: a rare client counts for much when it comes, but never for more than the whole step.
    A coordinate is averaged over those of its updates that arrived; none arrived, no step there.
    """

    inverse_weighting: ClassVar[bool] = True

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        q = r.inverse()  # (m,) a_i / p_i
        present = weighted_sum(q, r.arrived.astype(np.float32))  # (d,) or (1,): Σ q_i of what arrived
        total = weighted_sum(q, r.received())  # (d,)
        return (total / np.where(present > 0, present, 1.0)).astype(np.float32), None

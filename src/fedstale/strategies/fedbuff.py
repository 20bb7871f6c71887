"""FedBuff: the mean of a buffer of updates, whenever it is full.

Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022.
"""

import numpy as np

from fedstale.core import Array, NotNegative, Round, part, weighted_sum


@part
class FedBuff:
    """step = Σ_S (1 + s_i)^-power Δ_i / |S|, where s_i is the age of the update in steps.

    The paper takes power 1/2; 0 weighs all updates alike. Fast clients arrive more often and count more: its target
    is Σ r_i F_i with r_i ∝ how often i arrives, whatever the step size. It weighs all clients alike, whatever a_i.
    """

    power: NotNegative = 0.5

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        s = (1.0 + r.staleness()) ** -self.power  # (m,)
        count = weighted_sum(np.ones(len(s)), r.arrived.astype(np.float32))  # (d,) or (1,): |S|
        return (weighted_sum(s, r.received()) / np.maximum(count, 1)).astype(np.float32), None

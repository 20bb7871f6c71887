"""UDMA-PL: models, not updates, averaged with weights that make up for losses.

Eq. (4.4) of Rodio, Client heterogeneity in federated learning systems, thesis, 2024, ch. 4. The other
rules of that chapter are combinations of parts over a lossy channel: DMA-PL (4.2), whose mean of models is w plus
the mean of updates, is FedAvg; UPGA-PL (4.5) is Unbiased.
"""

from typing import ClassVar

import numpy as np

from fedstale.core import Array, Round, part, weighted_sum


@part
class UDMA:
    """w ← Σ_S (a_i / p_i) w_i with w_i = w + Δ_i, as the step Σ_S (a_i / p_i) Δ_i + (Σ_S a_i / p_i - 1) w.

    A baseline: right on average, but its weights sum to 1 only on average, so that the model itself is
    scaled up and down at random and never settles. To stay right on average a coordinate of which
    nothing arrived becomes 0, and the whole model does when nobody is heard.
    """

    inverse_weighting: ClassVar[bool] = True

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        c = r.inverse()  # (m,) a_i / p_i
        total = weighted_sum(c, r.arrived.astype(np.float32))  # (d,) or (1,)
        return (weighted_sum(c, r.received()) + (total - 1) * r.params).astype(np.float32), None

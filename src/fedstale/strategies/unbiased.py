"""Unbiased FedAvg: every update counts as often as it should have come.

Eq. (5) of Rodio and Neglia, FedStale, ECAI 2024; over a lossy channel it is UPGA-PL, with FedAU's
intervals as the estimator it is FedAU (Wang and Ji, ICLR 2024).
"""

from typing import ClassVar

import numpy as np

from fedstale.core import Array, Round, part, weighted_sum


@part
class Unbiased:
    """step = Σ_S (a_i / p_i) Δ_i. Right on average, noisy when some p_i are small."""

    inverse_weighting: ClassVar[bool] = True

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        return weighted_sum(r.inverse(), r.received()).astype(np.float32), None

"""Unbiased FedAvg: every update counts as often as it should have come.

Eq. (5) of Rodio and Neglia, FedStale, ECAI 2024; over a lossy channel it is UPGA-PL, with FedAU's
intervals as the estimator it is FedAU (Wang and Ji, ICLR 2024).
"""

from typing import ClassVar

import numpy as np

from fedstale.core import Array, Message, Order, Round, Total, orders, part, weighted_sum


@part
class Unbiased:
    """step = Σ_S (a_i / p_i) Δ_i. Right on average, noisy when some p_i are small."""

    inverse_weighting: ClassVar[bool] = True

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        return weighted_sum(r.inverse(), r.received()).astype(np.float32), None

    def opened(self, n: int, d: int) -> None:
        return None

    def orders(self, state: None, r: Round) -> list[Order]:
        return orders(r, inverse=True)

    def message(self, h: Array, update: Array, order: Order) -> Message:
        return Message(order.weight * order.inverse * update.astype(np.float64))

    def close(self, state: None, total: Total, r: Round) -> tuple[Array, None]:
        return total.sums.astype(np.float32), None

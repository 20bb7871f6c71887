"""FedAvg: the weighted mean of the updates that came.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
"""

import numpy as np

from fedstale.core import Array, Message, Order, Round, Total, orders, part


@part
class FedAvg:
    """step = Σ_S a_i Δ_i / Σ_S a_i. Simple, but it favours the clients that come often.

    A coordinate is averaged over those of its updates that arrived; none arrived, no step there.
    """

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        return r.average().astype(np.float32), None

    def opened(self, n: int, d: int) -> None:
        return None

    def orders(self, state: None, r: Round) -> list[Order]:
        return orders(r)

    def message(self, h: Array, update: Array, order: Order) -> Message:
        return Message(order.weight * update.astype(np.float64))

    def close(self, state: None, total: Total, r: Round) -> tuple[Array, None]:
        present = float(r.weights[r.clients].sum(dtype=np.float64))
        return (total.sums / (present or 1.0)).astype(np.float32), None

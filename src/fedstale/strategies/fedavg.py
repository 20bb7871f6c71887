"""FedAvg: the weighted mean of the updates that came.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
"""

import numpy as np

from fedstale.core import Array, Round, part


@part
class FedAvg:
    """step = Σ_S a_i Δ_i / Σ_S a_i. Simple, but it favours the clients that come often.

    A coordinate is averaged over those of its updates that arrived; none arrived, no step there.
    """

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        return r.average().astype(np.float32), None

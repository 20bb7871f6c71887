"""FedNova: clients that took more local steps do not count more.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020.
"""

import numpy as np

from fedstale.core import Array, Round, part, require


@part
class FedNova:
    """step = (Σ_S b_i τ_i) Σ_S b_i Δ_i / τ_i with b_i = a_i / Σ_S a_j and τ_i the local steps of client i.

    It repairs what unequal work does to FedAvg: the mean favours clients with many steps. With equal work it
    is FedAvg, so rare clients are still under-represented. τ_i is for plain local SGD, and momentum has others.
    A coordinate is averaged over those of its updates that arrived.
    """

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        require(r.work is not None, "FedNova needs the local steps of each client in Round.work")
        steps = r.work.steps.astype(np.float64) if r.work else np.empty(0)
        per_step = (r.received() / steps[:, None]).astype(np.float32)  # (m, d) Δ_i / τ_i
        mean = r._replace(updates=per_step).average()  # (d,)
        a = r.weights[r.clients].astype(np.float64)
        return (mean * (a @ steps / a.sum() if len(a) else 0.0)).astype(np.float32), None

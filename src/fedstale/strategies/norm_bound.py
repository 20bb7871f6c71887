"""A weighted mean in which no update is longer than the median: a loud liar counts like anybody.

Sun et al., Can You Really Backdoor Federated Learning?, 2019, with the median of the round as the bound.
"""

import numpy as np

from fedstale.core import Array, PositiveFinite, Round, part


@part
class NormBound:
    """step = Σ_S b_i Δ_i min(1, bound · median_S ‖Δ_j‖ / ‖Δ_i‖) with b_i = a_i / Σ_S a_j.

    It bounds how far one client can push, not in which direction. What did not arrive counts as 0 in a norm.
    """

    bound: PositiveFinite = 1.0

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        norms = np.sqrt(np.square(r.received(), dtype=np.float64).sum(axis=1))  # (m,)
        most = self.bound * np.median(norms) if len(norms) else 0.0
        shrink = np.minimum(1.0, most / np.where(norms > 0, norms, 1.0)).astype(np.float32)
        return r._replace(updates=r.updates * shrink[:, None]).average().astype(np.float32), None

"""FedAsync: the server's model is mixed with the model of every client that arrives.

Xie, Koyejo and Gupta, Asynchronous Federated Optimization, OPT 2020 (arXiv 1903.03934), polynomial staleness.
"""

import numpy as np

from fedstale.core import Array, NotNegative, PositiveShare, Round, part


@part
class FedAsync:
    """w ← (1 - α_s) w + α_s x_i with α_s = mixing · (1 + s)^-power; x_i is the client's model, s its age in steps.

    Of several updates of one step, one is mixed in after the other, by the number of the client; `buffer` of size 1
    is the paper. Fast clients count more, and the old model of a slow one pulls back. Local.prox is its μ.
    """

    mixing: PositiveShare = 0.6  # α
    power: NotNegative = 0.5  # a

    def init(self, n: int, d: int) -> None:
        return None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        w = r.params.astype(np.float64)
        alphas = self.mixing * (1.0 + r.staleness()) ** -self.power  # (m,)
        for k, alpha in enumerate(alphas.tolist()):
            sent = r.params if r.starts is None else r.starts[k]
            w += np.where(r.arrived[k], alpha * (sent + r.updates[k] - w), 0.0)
        return (w - r.params).astype(np.float32), None

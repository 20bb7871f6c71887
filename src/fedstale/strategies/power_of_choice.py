"""Power-of-choice: of some candidates, train those with the largest loss.

Cho et al., Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022.
"""

import numpy as np

from fedstale.core import Array, Availability, Count, Ids, Natural, Round, part, require, stream


@part
class PowerOfChoice:
    """Of the available, draw `candidates` with chances ∝ a_i; the `clients` of them with the largest loss train.

    step = the plain mean of their updates. Nobody is drawn twice. Fast where some clients lag behind, and
    biased towards clients with large losses, also where their labels are noise. `seed` is that of the draws.
    """

    clients: Count
    candidates: int
    seed: Natural = 0

    def __post_init__(self) -> None:
        ok = self.candidates >= self.clients
        require(ok, f"candidates must be at least as many as clients ({self.clients}), got {self.candidates}")

    def init(self, n: int, d: int) -> None:
        return None

    def select(self, state: None, a: Availability) -> tuple[Ids, None]:
        weights = a.weights[a.clients].astype(np.float64)
        drawn = np.flatnonzero(weights)  # places in a.clients
        if self.candidates < len(drawn):
            rng, chances = stream(self.seed, "power-of-choice", a.t), weights[drawn] / weights.sum()
            drawn = rng.choice(drawn, self.candidates, replace=False, p=chances)
        order = np.lexsort((drawn, -a.losses[drawn]))  # the largest loss first, of equals the first client
        return np.sort(a.clients[drawn[order[: self.clients]]]), None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        return r._replace(weights=np.ones_like(r.weights)).average().astype(np.float32), None

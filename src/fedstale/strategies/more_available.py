"""More available: leave out the clients that rarely participate.

A baseline of Rodio, Client heterogeneity in federated learning systems, thesis, 2024, section 2.5.
"""

import numpy as np

from fedstale.core import Array, Availability, Ids, Round, part, weighted_sum


@part
class MoreAvailable:
    """step = Σ_S (a_i / p_i) Δ_i over the clients whose p_i is above the median; the others never train.

    Fast and calm, and blind to the data of half the clients, so it stops somewhere else. Where nobody is
    above the median, because the most available half are all alike, those at the median train.
    """

    def init(self, n: int, d: int) -> None:
        return None

    def select(self, state: None, a: Availability) -> tuple[Ids, None]:
        median = np.median(a.probs)
        often = a.probs > median if (a.probs > median).any() else a.probs >= median  # (n,)
        return a.clients[often[a.clients]], None

    def aggregate(self, state: None, r: Round) -> tuple[Array, None]:
        return weighted_sum(r.inverse(), r.received()).astype(np.float32), None

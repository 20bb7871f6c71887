"""F3AST: of the available clients, train the ones that are most behind.

Ribero et al., Federated Learning Under Intermittent Client Availability and Time-Varying Communication
Constraints, 2022; in the form of the code released with CA-Fed, where r_i follows the availability.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Availability, Count, Ids, PositiveShare, Round, part, weighted_sum


class Rates(NamedTuple):
    """The state of F3AST."""

    r: npt.NDArray[np.float64]  # (n,) smoothed rate at which each client is available
    rounds: int  # how many it has followed; before the first it starts at the belief about p_i


@part
class F3AST:
    """r_i ← (1 - s) r_i + s·1{i available}; step = Σ (a_i / r_i) Δ_i over the M with the largest a_i / r_i.

    M is `clients`, s is `rate`: 1 / rounds of the run. It pays for few clients a round and favours the
    rare ones, whose large weights make it noisy; it is biased where more than M are available.
    """

    clients: Count
    rate: PositiveShare = 0.005

    def init(self, n: int, d: int) -> Rates:
        return Rates(np.zeros(n), 0)

    def select(self, state: Rates, a: Availability) -> tuple[Ids, Rates]:
        s, before = self.rate, state.r if state.rounds else a.probs.astype(np.float64)
        r = (1 - s) * before
        r[a.clients] += s
        behind = a.weights[a.clients] / r[a.clients]  # the order of a_i² / r_i²
        chosen = a.clients[np.argsort(-behind, kind="stable")[: self.clients]]  # of equals, the first
        return np.sort(chosen), Rates(r, state.rounds + 1)

    def aggregate(self, state: Rates, r: Round) -> tuple[Array, Rates]:
        q = r.weights[r.clients] / state.r[r.clients]  # (m,)
        return weighted_sum(q, r.received()).astype(np.float32), state

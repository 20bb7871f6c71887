"""FedPBC: every client goes on training its own model, also while nobody hears from it.

Xiang et al., Towards Bias Correction of FedAvg over Nonuniform and Time-Varying Communications, IEEE TSP.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from fedstale.core import Array, Ids, Mask, Positive, Round, part, weighted_sum


class OwnModels(NamedTuple):
    """The model of every client."""

    origin: Array | None  # (d,) w_0, where all began; None before the first round
    rows: Array  # (n, d) x_i of the clients that have trained
    begun: Mask  # (n,) which have


@part
class FedPBC:
    """x_i ← x_i + rate Δ_i for all clients, with Δ_i from the client's own x_i; w = mean_S x_i, x_i ← w for i in S.

    The server hears from S only, but absent clients train as well: it costs N / |S| times the work of other rules,
    and suits clients whose links fail while they could train. No p_i; all clients weigh alike, whatever a_i. The
    rows x_i live at the clients in a deployment.
    """

    rate: Positive = 1.0  # η_g
    at_clients: ClassVar[tuple[str, ...]] = ("rows", "begun")

    def init(self, n: int, d: int) -> OwnModels:
        return OwnModels(None, np.zeros((n, d), np.float32), np.zeros(n, np.bool_))

    def starts(self, state: OwnModels, clients: Ids, params: Array) -> Array:
        origin = params if state.origin is None else state.origin
        return np.where(state.begun[clients, None], state.rows[clients], origin).astype(np.float32)  # (m, d)

    def unheard(self, state: OwnModels, clients: Ids, updates: Array, params: Array) -> OwnModels:
        origin = params.copy() if state.origin is None else state.origin
        x = self.starts(state, clients, params)
        state.rows[clients], state.begun[clients] = x + np.float32(self.rate) * updates, True
        return state._replace(origin=origin)

    def aggregate(self, state: OwnModels, r: Round) -> tuple[Array, OwnModels]:
        state = state._replace(origin=r.params.copy() if state.origin is None else state.origin)
        if len(r.clients) == 0:
            return np.zeros_like(r.params), state
        each = np.full(len(r.clients), 1 / len(r.clients))
        x = self.starts(state, r.clients, r.params)
        step = weighted_sum(each, x - r.params) + weighted_sum(self.rate * each, r.received())
        state.rows[r.clients], state.begun[r.clients] = (r.params + step).astype(np.float32), True
        return step.astype(np.float32), state

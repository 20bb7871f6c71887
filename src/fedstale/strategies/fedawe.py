"""FedAWE: every client goes on from where it left, and echoes what it missed.

Xiang et al., Efficient Federated Learning against Heterogeneous and Non-stationary Client Unavailability,
NeurIPS 2024.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from fedstale.core import Array, Ids, Positive, Round, part, weighted_sum


class Models(NamedTuple):
    """The model of every client."""

    origin: Array | None  # (d,) w_0, where all began; None before the first round
    rows: Array  # (n, d) x_i of the clients that came
    last: Ids  # (n,) the round of the last visit, 0 before the first


@part
class FedAWE:
    """x_i† = x_i + echo (t - τ_i) Δ_i with Δ_i from the client's own x_i; w = mean_S x_i†, then x_i ← w for i in S.

    τ_i is the round of the last visit, so that a rare client counts as many steps as it missed. It needs no p_i
    and weighs all clients alike, whatever a_i. Large steps after long absences need a small learning rate. The
    rows x_i live at the clients in a deployment. `point`: the mean of all x_i, where the authors' code evaluates.
    """

    echo: Positive = 1.0  # η_g
    at_clients: ClassVar[tuple[str, ...]] = ("rows", "last")

    def init(self, n: int, d: int) -> Models:
        return Models(None, np.zeros((n, d), np.float32), np.zeros(n, np.int64))

    def starts(self, state: Models, clients: Ids, params: Array) -> Array:
        origin = params if state.origin is None else state.origin
        return np.where(state.last[clients, None] > 0, state.rows[clients], origin).astype(np.float32)  # (m, d)

    def aggregate(self, state: Models, r: Round) -> tuple[Array, Models]:
        origin, rows, last = state
        origin = r.params.copy() if origin is None else origin
        if len(r.clients) == 0:
            return np.zeros_like(r.params), Models(origin, rows, last)
        x = self.starts(Models(origin, rows, last), r.clients, r.params)
        echoes = self.echo * (r.t - last[r.clients])  # (m,) η_g (t - τ_i)
        each = np.full(len(r.clients), 1 / len(r.clients))
        step = weighted_sum(each, x - r.params) + weighted_sum(each * echoes, r.received())
        rows[r.clients], last[r.clients] = (r.params + step).astype(np.float32), r.t
        return step.astype(np.float32), Models(origin, rows, last)

    def point(self, state: Models, params: Array) -> Array:
        """(d,) x̄, the mean of the models of all clients."""
        if state.origin is None:
            return params
        rows = np.where(state.last[:, None] > 0, state.rows, state.origin)
        return np.asarray(rows.mean(axis=0, dtype=np.float64), np.float32)

"""FOCUS: a client's last gradient stays in the sum until the client comes again.

Ying, Li and Yang, Exact and Linear Convergence for Federated Learning under Arbitrary Client Participation is
Attainable, NeurIPS 2025.
"""

from dataclasses import field
from typing import ClassVar, NamedTuple

import numpy as np

from fedstale.core import LATER, Array, BadInput, Floats, Ids, Round, part


class Tracked(NamedTuple):
    """The gradients that are tracked."""

    rows: Array  # (n, d) g_i, the last local gradient of each client, 0 before its first visit
    total: Floats  # (d,) Y = N Σ a_i g_i
    rate: float  # the local learning rate of the last round with clients


@part
class FOCUS:
    """Local steps along ∇f_i - g_i; then g_i ← the last local gradient for i in S, and step = -lr N Σ_i a_i g_i.

    lr is the local learning rate. Exact for any participation, and without p_i; a rare client's gradient is as
    old as its last visit. The step is a sum over all N clients: it takes a learning rate about N times smaller
    than that of a mean. Needs plain SGD with a fixed number of steps. In a round without clients the server steps
    on, as the algorithm says; with `released` it waits, as the authors' code does.
    """

    released: bool = field(default=False, metadata=LATER)
    needs_last_gradient: ClassVar[bool] = True
    at_clients: ClassVar[tuple[str, ...]] = ("rows",)

    def init(self, n: int, d: int) -> Tracked:
        return Tracked(np.zeros((n, d), np.float32), np.zeros(d), 0.0)

    def drift(self, state: Tracked, clients: Ids) -> Array:
        return -state.rows[clients]  # (m, d)

    def aggregate(self, state: Tracked, r: Round) -> tuple[Array, Tracked]:
        rows, Y, rate = state
        if len(r.clients):
            if r.gradients is None or r.work is None:
                raise BadInput("FOCUS needs the last local gradients, Round.gradients, and Round.work")
            rate = float(r.work.rates[0] / r.work.steps[0])
            for i, g, arrived in zip(r.clients.tolist(), r.gradients, r.arrived, strict=True):
                y = np.where(arrived, g.astype(np.float64) - rows[i], 0)  # what the client sends
                Y += len(r.weights) * float(r.weights[i]) * y
                rows[i] = np.where(arrived, g, rows[i])
        waits = self.released and not len(r.clients)
        return np.where(waits, 0, -rate * Y).astype(np.float32), Tracked(rows, Y, rate)

"""Amplified SCAFFOLD: control variates and steps that are amplified once per period.

Crawshaw and Liu, Federated Learning under Periodic Client Participation and Heterogeneous Data: A New
Communication-Efficient Algorithm and Analysis, NeurIPS 2024.
"""

from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Count, Floats, Ids, Positive, Round, part, require, weighted_sum


class Period(NamedTuple):
    """The control variates, and what was gathered since they were set."""

    rows: Array  # (n, d) c_i
    mean: Floats  # (d,) c = Σ a_i c_i
    gradients: Array  # (n, d) G_i, sum of the raw gradients of client i
    steps: npt.NDArray[np.float64]  # (n,) n_i, how many they are
    update: Floats  # (d,) u = w - w_P, the steps since the last amplification
    rounds: int


@part
class AmplifiedScaffold:
    """FedAvg's step with c - c_i added to every local gradient; every P = `period` rounds also (γ - 1) u.

    Then c_i ← G_i / n_i, the mean raw gradient of the period, for the clients heard in it. γ is `factor`. The
    paper's means over clients are weighted by a_i here. P = 1, γ = 1 is SCAFFOLD, option II. The rows c_i and
    G_i live at the clients in a deployment. An update that arrives in part does not count for G_i.
    """

    period: Count
    factor: Positive
    at_clients: ClassVar[tuple[str, ...]] = ("rows", "gradients", "steps")

    def init(self, n: int, d: int) -> Period:
        rows, gradients = np.zeros((2, n, d), np.float32)
        return Period(rows, np.zeros(d), gradients, np.zeros(n), np.zeros(d), 0)

    def drift(self, state: Period, clients: Ids) -> Array:
        return (state.mean - state.rows[clients]).astype(np.float32)  # (m, d) c - c_i

    def aggregate(self, state: Period, r: Round) -> tuple[Array, Period]:
        require(r.work is not None, "AmplifiedScaffold needs the local rates of each client in Round.work")
        rows, c, G, count, u, rounds = state
        work = zip(r.work.steps.tolist(), r.work.rates.tolist(), strict=True) if r.work else ()
        for i, Δ, arrived, (steps, rates) in zip(r.clients.tolist(), r.received(), r.arrived, work, strict=True):
            if arrived.all() and rates > 0:
                G[i] += steps * (rows[i] - c - Δ / rates)  # Σ_k raw gradients: -Δ_i / lr + K (c_i - c)
                count[i] += steps
        step = r.average()
        u = u + step
        if rounds + 1 < self.period:
            return step.astype(np.float32), Period(rows, c, G, count, u, rounds + 1)
        heard = count > 0
        rows[heard] = G[heard] / count[heard, None]
        fresh = Period(
            rows, weighted_sum(r.weights, rows), np.zeros_like(G), np.zeros_like(count), np.zeros_like(u), 0
        )
        return (step + (self.factor - 1) * u).astype(np.float32), fresh

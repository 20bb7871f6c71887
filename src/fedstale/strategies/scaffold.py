"""SCAFFOLD: local steps that are corrected for where the others would go.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
Algorithm 1, option II.
"""

from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Ids, Round, part, require


class Controls(NamedTuple):
    """The control variates."""

    rows: Array  # (n, d) c_i, the mean gradient of a client's last local steps
    mean: npt.NDArray[np.float64]  # (d,) c = Σ a_i c_i


@part
class Scaffold:
    """FedAvg's step, with c - c_i added to every local gradient; then c_i ← c_i - c - Δ_i / (K lr) for i in S.

    Clients with different data do not drift apart, so that many local steps end at the optimum where
    FedAvg's end beside it; stale controls hurt when clients come rarely. c weighs clients by a_i, which
    is the paper's mean when they are equal. Here the rows c_i are kept with the state; in a deployment
    each lives at its client, and c travels with the parameters. What is lost on its way changes no c_i.
    """

    at_clients: ClassVar[tuple[str, ...]] = ("rows",)

    def init(self, n: int, d: int) -> Controls:
        return Controls(np.zeros((n, d), np.float32), np.zeros(d))

    def drift(self, state: Controls, clients: Ids) -> Array:
        return (state.mean - state.rows[clients]).astype(np.float32)  # (m, d) c - c_i

    def aggregate(self, state: Controls, r: Round) -> tuple[Array, Controls]:
        require(r.work is not None, "Scaffold needs the sum of the local rates (K lr) of each client in Round.work")
        rates = r.work.rates if r.work else np.empty(0)
        a, rows, c = r.weights[r.clients], state.rows, state.mean
        mean = c.copy()
        heard = zip(r.clients.tolist(), a.tolist(), rates.tolist(), r.received(), r.arrived, strict=True)
        for i, a_i, total, Δ, arrived in heard:
            moved = arrived & (total > 0)  # at rate 0 nothing was learned
            c_i = np.where(moved, rows[i] - c - Δ / (total or 1.0), rows[i]).astype(np.float32)
            mean += a_i * (c_i.astype(np.float64) - rows[i])
            rows[i] = c_i
        return r.average().astype(np.float32), Controls(rows, mean)

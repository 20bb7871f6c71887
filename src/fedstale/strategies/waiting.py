"""Waiting for everybody: what amplified updates are compared with.

Wang and Ji, A Unified Analysis of Federated Learning with Arbitrary Client Participation, NeurIPS 2022,
sections 5 and 6.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Count, Round, part, weighted_sum


class Means(NamedTuple):
    """The updates that wait for the next step."""

    rows: Array  # (n, d) mean update of each client since the last step, 0 before its first
    counts: npt.NDArray[np.int32]  # (n, 1) of how many updates; (n, d) once one has come in part
    rounds: int  # since the last step


@part
class Wait:
    """No step for P = `period` rounds; then Σ a_i (mean update of i) / Σ a_i over all clients heard since.

    Each client counts once, however often it came; but there is only one step in P rounds. The paper's
    gradients at the same w need `Local(steps=1)` and a server without momentum: an update is then -lr
    times a gradient. The batch tells the two baselines apart: wait-minibatch draws I·b samples (as good
    as I batches of b), wait-full takes all that a client has. In a deployment the rows live at the clients.
    """

    period: Count

    def init(self, n: int, d: int) -> Means:
        return Means(np.zeros((n, d), np.float32), np.zeros((n, 1), np.int32), 0)

    def aggregate(self, state: Means, r: Round) -> tuple[Array, Means]:
        rows, counts, rounds = state
        if r.arrived.shape[1] > counts.shape[1]:
            counts = np.repeat(counts, rows.shape[1], axis=1)
        for i, Δ, arrived in zip(r.clients.tolist(), r.received(), r.arrived, strict=True):
            counts[i] += arrived
            rows[i] += arrived / np.maximum(counts[i], 1) * (Δ - rows[i])
        if rounds + 1 < self.period:
            return np.zeros(rows.shape[1], np.float32), Means(rows, counts, rounds + 1)
        present = weighted_sum(r.weights, (counts > 0).astype(np.float32))  # (1,) or (d,): Σ a_i
        step = weighted_sum(r.weights, rows) / np.where(present > 0, present, 1.0)
        rows[counts.any(axis=1)] = 0
        counts[:] = 0
        return step.astype(np.float32), Means(rows, counts, 0)

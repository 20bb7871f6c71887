"""FedAvg whose progress of several rounds is amplified, for clients that come in turns.

Wang and Ji, A Unified Analysis of Federated Learning with Arbitrary Client Participation, NeurIPS 2022,
Algorithm 1.
"""

from dataclasses import field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import LATER, Array, Count, Positive, Round, keep, part, require, shown


class Progress(NamedTuple):
    """The progress since the last amplification."""

    update: npt.NDArray[np.float64]  # (d,) u, the steps since the last amplification
    rounds: int  # how many they are


@part
class Amplified:
    """FedAvg's step each round; every P = `period` rounds also (η - 1) u, with η = `factor`.

    After P rounds the model is at w + η u: small steps gather what all groups of clients want before a
    large one is made. Good when a period covers a full cycle of availability; too long a period or too
    large a factor overshoots. η = 1 is FedAvg, P = 1 is FedAvg with the server's learning rate η.
    `q` are the q_t^n of the paper, weights in the place of the a_i: (n,), or (rounds, n), which begin again after
    the last row. Those of who is there are scaled to sum 1.
    """

    period: Count
    factor: Positive
    q: npt.ArrayLike | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        if self.q is not None:
            q = np.array(self.q, np.float32)
            ok = q.ndim in (1, 2) and bool((q >= 0).all()) and 0 < float(q.sum()) < np.inf
            allowed = "a weight of at least 0 for each client, or rounds × clients of them, not all 0"
            require(ok, f"q must be {allowed}, got {shown(self.q)}")
            keep(self, "q", q)

    def init(self, n: int, d: int) -> Progress:
        given = n if self.q is None else np.shape(self.q)[-1]
        require(given == n, f"q must be {n} weights, got {given}")
        return Progress(np.zeros(d), 0)

    def aggregate(self, state: Progress, r: Round) -> tuple[Array, Progress]:
        if self.q is not None:
            q = np.atleast_2d(np.asarray(self.q))
            r = r._replace(weights=q[(r.t - 1) % len(q)])
        step = r.average()  # (d,)
        u = state.update + step
        if state.rounds + 1 < self.period:
            return step.astype(np.float32), Progress(u, state.rounds + 1)
        return (step + (self.factor - 1) * u).astype(np.float32), Progress(np.zeros_like(u), 0)

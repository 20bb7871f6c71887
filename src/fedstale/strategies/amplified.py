"""FedAvg whose progress of several rounds is amplified, for clients that come in turns.

Wang and Ji, A Unified Analysis of Federated Learning with Arbitrary Client Participation, NeurIPS 2022,
Algorithm 1.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Round, part, require


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
    """

    period: int
    factor: float

    def __post_init__(self) -> None:
        require(self.period >= 1, f"period must be at least 1 round, got {self.period}")
        require(self.factor > 0, f"factor must be above 0, got {self.factor}")

    def init(self, n: int, d: int) -> Progress:
        return Progress(np.zeros(d), 0)

    def aggregate(self, state: Progress, r: Round) -> tuple[Array, Progress]:
        step = r.average()  # (d,)
        u = state.update + step
        if state.rounds + 1 < self.period:
            return step.astype(np.float32), Progress(u, state.rounds + 1)
        return (step + (self.factor - 1) * u).astype(np.float32), Progress(np.zeros_like(u), 0)

"""FedExP: a longer step where the clients' updates point in different directions.

Jhunjhunwala et al., FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023.
"""

import numpy as np

from fedstale.core import Array, NotNegative, Round, part


@part
class FedExP:
    """step = max(1, mean_S ‖Δ_i‖² / (2 (‖Δ̄‖² + ε))) Δ̄ with Δ̄ = Σ_S a_i Δ_i / Σ_S a_i and ε = `epsilon`.

    Nothing to tune, and quick where FedAvg's steps are short because clients differ; it does not repair uneven
    participation. The last iterates oscillate: `point` is the mean of the last two, which the paper returns.
    """

    epsilon: NotNegative = 1e-3

    def init(self, n: int, d: int) -> Array:
        return np.zeros(d, np.float32)  # the last step

    def aggregate(self, state: Array, r: Round) -> tuple[Array, Array]:
        mean, updates = r.average(), r.received().astype(np.float64)
        short, long = float(mean @ mean) + self.epsilon, float(np.square(updates).sum())
        longer = max(1.0, long / (2 * len(updates) * short)) if len(updates) and short > 0 else 1.0
        step = (longer * mean).astype(np.float32)
        return step, step

    def point(self, state: Array, params: Array) -> Array:
        """(d,) the mean of the last two iterates."""
        return params - state / np.float32(2)

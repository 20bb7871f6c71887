"""FedExP's step length for any rule: a longer step where the clients' updates point in different directions.

Jhunjhunwala et al., FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023, whose rule is FedAvg.
"""

import numpy as np

from fedstale.core import Array, Hooks, NotNegative, Round, Strategy, Wrapped, hooks_of, part


@part
class Extrapolated:
    """step = max(1, mean_S ‖Δ_i‖² / (2 (‖s‖² + ε))) s with s the step of any rule and ε = `epsilon`.

    With FedAvg it is FedExP. A rule that repairs uneven participation keeps its direction, on average not its
    length. `point` is the mean of the last two iterates, which the paper returns, in the place of the rule's own.
    """

    strategy: Strategy
    epsilon: NotNegative = 1e-3

    def hooks(self) -> Hooks:
        return hooks_of(self.strategy).lifted()

    def init(self, n: int, d: int) -> Wrapped:
        return Wrapped(self.strategy.init(n, d), np.zeros(d, np.float32))  # the last step

    def aggregate(self, state: Wrapped, r: Round) -> tuple[Array, Wrapped]:
        s, inner = self.strategy.aggregate(state.inner, r)
        long, m = float(np.square(r.received(), dtype=np.float64).sum()), len(r.clients)
        short = float(np.square(s, dtype=np.float64).sum()) + self.epsilon
        longer = max(1.0, long / (2 * m * short)) if m and short > 0 else 1.0
        step = (longer * s).astype(np.float32)
        return step, Wrapped(inner, step)

    def point(self, state: Wrapped, params: Array) -> Array:
        """(d,) the mean of the last two iterates."""
        last: Array = state.own
        return params - last / np.float32(2)

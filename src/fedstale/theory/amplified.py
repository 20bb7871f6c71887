"""Participation in windows of P rounds, and updates that are amplified after each.

[A] Wang and Ji, A Unified Analysis of Federated Learning with Arbitrary Client Participation, 2022.
"""

import numpy as np
import numpy.typing as npt

from fedstale.core import arguments_checked, require
from fedstale.theory.checks import matrix_of

__all__ = ["delta2"]


@arguments_checked
def delta2(matrix: npt.ArrayLike, period: int, *, divergence: float = 1.0) -> float:
    """δ̃²(P) of [A], as eq. (15) bounds it: the most, over windows of P rounds, of n Σ_i (q̄_i - μ)² d².

    q_i is 1 / (how many are there) for who is there, q̄_i its mean over the window, μ the mean of the q̄_i,
    and `divergence` is d². 0 says that in every window all took part alike, in turn or together. Windows
    follow one another from the first round; an incomplete last one is left out.
    """
    here = matrix_of(matrix)
    rounds, n = here.shape
    require(1 <= period <= rounds, f"period must be between 1 and the {rounds} rounds, got {period}")
    q = here / np.maximum(here.sum(axis=1, keepdims=True), 1)
    means = q[: rounds // period * period].reshape(-1, period, n).mean(axis=1)  # (windows, n)
    return float(n * n * divergence * means.var(axis=1).max())

"""Where plain averaging ends up, and how far that is from the objective.

[T] Rodio, Client heterogeneity in federated learning systems, thesis, 2024, section 2.3.
[S] Rodio and Neglia, FedStale, ECAI 2024.
"""

from __future__ import annotations  # `help` shows the names of hints

from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, Range, arguments_checked, normalised, require
from fedstale.core.parts import NotNegativeFinite
from fedstale.theory.checks import check_sums, matrix_of, over, probabilities, weights_of

__all__ = ["BiasBound", "bias_bound", "biased_weights", "chi_square", "plain_weights", "total_variation"]

Condition = Annotated[float, Range("at least 1 and finite")]  # κ = L / μ


@arguments_checked
def total_variation(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """½ Σ |a_i - b_i| of two distributions, Theorem 2.3.4 of [T]."""
    x, y = _both(a, b)
    return 0.5 * float(np.abs(x - y).sum())


@arguments_checked
def chi_square(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Σ (a_i - b_i)² / b_i, Theorem 2.3.2 of [T]; inf if b leaves out a client of a."""
    return sum(over((x - y) ** 2, y) for x, y in zip(*(z.tolist() for z in _both(a, b)), strict=True) if x or y)


def _both(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Two finite distributions over the same clients."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    ok = x.ndim == 1 and x.shape == y.shape and bool((x >= 0).all() and (y >= 0).all() and (x + y < np.inf).all())
    require(ok, f"two distributions must have one finite number of at least 0 per client, got {a!r} and {b!r}")
    return x, y


class BiasBound(NamedTuple):
    """Upper bounds on F(w_b) - F*, where w_b minimises Σ b_i F_i and not F = Σ a_i F_i."""

    by_chi_square: float  # κ² χ²(a, b) Γ, eq. (2.11)
    by_variation: float  # 4 κ² TV(a, b)² Γ', eq. (2.20)


@arguments_checked
def bias_bound(a: npt.ArrayLike, b: npt.ArrayLike, *, condition: Condition, gap: NotNegativeFinite,
               gap_b: NotNegativeFinite) -> BiasBound:  # fmt: skip
    """Theorems 2.3.2 and 2.3.4 of [T], for strongly convex F_i with condition number κ = L / μ.

    `gap` is Γ = max_i F_i(w*) - F_i*, and `gap_b` is Γ', the same at w_b.
    """
    check_sums(a, b)
    κ2 = condition**2
    return BiasBound(κ2 * chi_square(a, b) * gap, 4 * κ2 * total_variation(a, b) ** 2 * gap_b)


@arguments_checked
def biased_weights(p: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Floats:
    """b_i = a_i p_i / Σ a_j p_j, eq. (2.4) of [T] and (4) of [S]: what the average of who comes minimises.

    Exact if the weight of those who come is the same every round, else `plain_weights` of a long matrix is.
    """
    q = probabilities(p)
    b = q * normalised(weights, len(q))
    require(b.sum() > 0, "somebody with a weight must come, got p = 0 for all")
    return np.asarray(b / b.sum())


@arguments_checked
def plain_weights(matrix: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Floats:
    """(n,) mean of a_i 1{i here} / Σ_here a_j over the rounds with anybody there: how FedAvg weighs clients."""
    here = matrix_of(matrix)
    q = weights_of(here * normalised(weights, here.shape[1]))
    q = q[q.any(axis=1)]
    require(len(q) > 0, "a participation matrix must have a round with somebody there, got none")
    return np.asarray(q.mean(axis=0))

"""What several formulas ask of their arguments."""

import math

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, Mask, require, shown


def probabilities(p: npt.ArrayLike) -> Floats:
    """One probability per client."""
    q = np.asarray(p, np.float64)
    ok = q.ndim == 1 and q.size > 0 and bool(((q >= 0) & (q <= 1)).all())
    require(ok, f"p must be one probability in [0, 1] per client, got {p!r}")
    return q


def matrix_of(matrix: npt.ArrayLike) -> Mask:
    """A participation matrix, rounds × clients."""
    m = np.asarray(matrix)
    ok = m.ndim == 2 and m.size > 0 and bool(((m == 0) | (m == 1)).all())
    require(ok, f"a participation matrix must be rounds × clients of 0 and 1, got {shown(matrix)}")
    return m.astype(np.bool_)


def weights_of(matrix: npt.ArrayLike) -> Floats:
    """(rounds, n) q_t^n, scaled to sum 1 in every round: given, or alike for all who are there; 0 if nobody is."""
    q = np.asarray(matrix, np.float64)
    ok = q.ndim == 2 and q.size > 0 and bool((q >= 0).all()) and bool(np.isfinite(q).all())
    require(ok, f"participation must be rounds × clients of 0 and 1, or of weights from 0, got {shown(matrix)}")
    total = q.sum(axis=1, keepdims=True)
    return np.asarray(q / np.where(total > 0, total, 1))


def check_sums(*shares: npt.ArrayLike) -> None:
    """Refuse weights, such as numbers of samples, where a theorem is about distributions."""
    sums = [float(np.sum(np.asarray(share, np.float64))) for share in shares]
    require(np.allclose(sums, 1, atol=1e-6), f"weights must sum to 1 (see `normalised`), got sums of {sums}")


def over(x: float, y: float) -> float:
    """x / y, infinite if y is 0."""
    return math.inf if y == 0 else x / y

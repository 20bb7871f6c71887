"""Statistics over seeds: mean and standard deviation, paired tests, many tests at once, thinning of long curves."""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats

LEVEL = 0.05  # chance of error of a one-sided test


class Spread(NamedTuple):
    """Mean and standard deviation (n - 1) over seeds, of a number or of each round of a curve."""

    mean: Any
    std: Any  # 0 with one seed
    seeds: int


def spread(values: npt.ArrayLike) -> Spread:
    """Over the first axis: (seeds,) gives two numbers, (seeds, rounds) two arrays."""
    table = np.asarray(values, np.float64)
    std: Any = table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros(table.shape[1:])
    mean, std = (float(x) if table.ndim == 1 else x for x in (table.mean(axis=0), std))
    return Spread(mean, std, len(table))


def difference(x: Floats, y: Floats) -> Floats:
    """x - y, seed by seed; nan where both runs diverged to the same infinity."""
    with np.errstate(invalid="ignore"):
        return np.asarray(x - y)


def uncertainty(values: Floats) -> float:
    """Half the 90 % confidence interval of the mean: Student's quantile times its standard error."""
    n = len(values)
    return student_quantile(n - 1) * spread(values).std / math.sqrt(n) if n > 1 else math.inf


def paired_test(differences: Floats, margin: float = 0.0) -> int:
    """1 or -1 if the mean of paired differences is above or below -margin beyond chance, else 0.

    A one-sided t-test over the seeds at 5 %; one seed alone proves nothing.
    """
    mean = float(differences.mean())
    error = uncertainty(differences) if math.isfinite(mean) else 0.0
    return int(mean + margin > error) - int(mean + margin < -error)  # nan, where both diverged: 0


def p_value(values: Floats) -> float:
    """The chance of a mean at least as far above 0 if the true one is 0: a one-sided t-test over the seeds.

    1 where there is nothing to test: one seed, or a run that diverged. 0 only where all seeds have the same number
    above 0; else at least 1e-15, for less is rounding.
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return 1.0
    mean, std, n = spread(values)
    if std == 0:
        return 0.0 if mean > 0 else 0.5 if mean == 0 else 1.0
    return max(student_tail(mean / (std / math.sqrt(n)), n - 1), 1e-15)


def student_tail(t: float, degrees: int) -> float:
    """P(T > t) of Student's distribution, by its closed form for whole degrees of freedom."""
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = degrees % 2
    total = term = math.cos(angle) if odd else 1.0
    for k in range(3 if odd else 2, degrees, 2):
        term *= square * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + (sine * total if degrees > 1 else 0.0)) if odd else sine * total
    return (1 - inside) / 2 if t > 0 else (1 + inside) / 2


@cache
def student_quantile(degrees: int) -> float:
    """The t with P(T > t) = 5 %, by bisection; 6.3138 with one degree of freedom, the most."""
    low, high = 0.0, 7.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if student_tail(middle, degrees) > LEVEL else (low, middle)
    return high


def holm(p_values: npt.ArrayLike) -> Floats:
    """Holm's correction: below 5 % for all tests that may be believed together with a 5 % chance of any error."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(raised, 1.0)
    return corrected


def block_means(table: npt.NDArray[Any], most: int) -> tuple[list[int], Floats]:
    """At most `most` blocks of columns of about the same size: where each starts, and its mean in each row."""
    size = -(-table.shape[1] // most)
    starts = list(range(0, table.shape[1], size))
    sums = np.add.reduceat(table.astype(np.float64), starts, axis=1)
    return starts, sums / np.diff([*starts, table.shape[1]])


def tenth(count: int) -> int:
    """How many of so many clients are a tenth: the nearest whole number, at least one."""
    return max(1, round(count / 10))


def thinned(count: int, most: int) -> list[int]:
    """At most `most` of the indices 0 … count - 1, evenly spaced, with both ends."""
    every = range(count) if count <= most else np.unique(np.linspace(0, count - 1, most).round())
    return [int(k) for k in every]

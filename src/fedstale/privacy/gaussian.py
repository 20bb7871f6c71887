"""What Gaussian noise promises: μ of Gaussian differential privacy, and the (ε, δ) that it stands for.

A step with sensitivity s and noise N(0, σ² I) has μ = s / σ, and μ² adds up over steps, also where a step depends
on the ones before. μ-GDP is (ε, δ(ε))-DP for every ε, with (Dong, Roth and Su, Gaussian Differential Privacy,
Corollary 1)

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
"""

import math
from collections.abc import Callable

from fedstale.core import require

TOLERANCE = 1e-12  # relative, of what is found by bisection


def delta_of(mu: float, epsilon: float) -> float:
    """δ(ε) of a mechanism that is μ-GDP."""
    require(mu >= 0, f"mu must be at least 0, got {mu}")
    require(epsilon >= 0, f"epsilon must be at least 0, got {epsilon}")
    if mu == 0 or math.isinf(mu):
        return float(mu > 0)
    a, b = _log_normal(mu / 2 - epsilon / mu), epsilon + _log_normal(-mu / 2 - epsilon / mu)
    return math.exp(a) * -math.expm1(min(b - a, 0.0))


def epsilon_of(mu: float, delta: float) -> float:
    """The least ε for which a mechanism that is μ-GDP is (ε, δ)-DP."""
    _check_delta(delta)
    require(mu >= 0, f"mu must be at least 0, got {mu}")
    if math.isinf(mu) or delta_of(mu, 0) <= delta:
        return math.inf if math.isinf(mu) else 0.0
    return _crossing(lambda epsilon: delta_of(mu, epsilon) <= delta)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ for which μ-GDP is (ε, δ)-DP: the budget of a client."""
    _check_delta(delta)
    require(0 < epsilon < math.inf, f"epsilon must be above 0 and finite, got {epsilon}")
    return _crossing(lambda mu: delta_of(mu, epsilon) > delta)


def _check_delta(delta: float) -> None:
    require(0 < delta < 1, f"delta must be above 0 and below 1, got {delta}")


def _crossing(beyond: Callable[[float], bool]) -> float:
    """The point from which on `beyond` is true, which it is for all large numbers."""
    low, high = 0.0, 1.0
    while not beyond(high):
        low, high = high, 2 * high
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return low if beyond(low) else high


def _log_normal(x: float) -> float:
    """ln Φ(x), also where Φ(x) is too small for a float."""
    if x > -10:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    square = 1 / x**2  # Φ(x) ≈ φ(x)/|x| (1 − 1/x² + 3/x⁴ − 15/x⁶ + 105/x⁸ − …)
    series = -square * (1 - 3 * square * (1 - 5 * square * (1 - 7 * square * (1 - 9 * square))))
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log1p(series)

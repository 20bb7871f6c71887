"""Gaussian differential privacy against the formula in 60 digits."""

import math

import mpmath
import pytest

from fedstale.core import BadInput
from fedstale.privacy.gaussian import _log_normal, delta_of, epsilon_of, mu_of


def exact(mu: float, epsilon: float) -> float:
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, math.sqrt(2), 5.0, 20.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0, 30.0, 200.0])
def test_delta_is_that_of_the_formula(mu: float, epsilon: float) -> None:
    assert delta_of(mu, epsilon) == pytest.approx(exact(mu, epsilon), rel=1e-8, abs=1e-20)


@pytest.mark.parametrize("x", [3.0, -9.99, -10.01, -12.0, -20.0, -60.0])
def test_the_tail_is_that_of_the_normal_distribution_also_beyond_what_a_float_holds(x: float) -> None:
    with mpmath.workdps(60):
        assert _log_normal(x) == pytest.approx(float(mpmath.log(mpmath.ncdf(x))), abs=2e-8, rel=1e-14)


def test_a_known_case() -> None:
    assert epsilon_of(math.sqrt(2), 1e-5) == pytest.approx(6.57, abs=0.005)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_budget_and_spending_are_inverse_to_each_other(epsilon: float, delta: float) -> None:
    mu = mu_of(epsilon, delta)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert exact(mu, epsilon) == pytest.approx(delta, rel=1e-6)


def test_nothing_was_told_or_everything() -> None:
    assert epsilon_of(0, 1e-5) == 0
    assert epsilon_of(1e-9, 1e-5) == 0
    assert epsilon_of(math.inf, 1e-5) == math.inf


@pytest.mark.parametrize("delta", [0, 1, -1, 2, math.nan])
def test_a_delta_that_promises_nothing_is_refused(delta: float) -> None:
    with pytest.raises(BadInput, match="delta must be above 0 and below 1"):
        epsilon_of(1, delta)

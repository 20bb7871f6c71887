"""Heterogeneity of quadratics by hand, and of samples by one gradient over all of them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput
from fedstale.tasks.quadratic import Quadratic
from fedstale.tasks.synthetic import synthetic
from fedstale.theory import bias_bound, heterogeneity, measured


@given(st.integers(1, 5), st.integers(0, 2**32))
def test_quadratics_by_hand(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    centers, A, a = rng.standard_normal((n, 3)), rng.uniform(0.5, 2.0, (n, 3)), rng.uniform(0.1, 1, n)
    task = Quadratic(centers, A, weights=a)
    best = task.optimum()
    found = heterogeneity(task, best, optima=0.0)  # F_i* = 0
    a = a / a.sum()
    F = [0.5 * float(np.sum(A[i] * (best - centers[i]) ** 2)) for i in range(n)]
    gradients = [A[i] * (best - centers[i]) for i in range(n)]
    mean = sum(a[i] * gradients[i] for i in range(n))
    σ_g2 = sum(a[i] * float(np.sum((gradients[i] - mean) ** 2)) for i in range(n))
    assert found.losses == pytest.approx(F, rel=1e-4, abs=1e-6)
    assert found.gap == pytest.approx(sum(a[i] * F[i] for i in range(n)), rel=1e-4, abs=1e-6)
    assert found.largest_gap == pytest.approx(max(F), rel=1e-4, abs=1e-6)
    assert found.diversity == pytest.approx(σ_g2, rel=1e-4, abs=1e-6)
    assert found.gradient == pytest.approx(0, abs=1e-5)
    assert {type(value) for value in found.numbers().values()} == {float}
    assert found.gap <= found.diversity / (2 * 0.5) + 1e-6  # (1.8), μ = ½
    assert found.diversity <= 2 * 2.0 * found.gap + 1e-6  # (1.9), L = 2


def test_the_gaps_are_those_that_the_bias_bounds_ask_for() -> None:
    task = Quadratic([[0.0], [1.0]])
    b = np.array([0.9, 0.1])
    at_best, at_biased = (heterogeneity(task, task.optimum(w), optima=0.0) for w in (None, b))
    assert (at_best.largest_gap, at_biased.largest_gap) == pytest.approx((0.125, 0.405))
    error = task.objective(task.optimum(b)) - task.objective(task.optimum())
    limits = bias_bound([0.5, 0.5], b, condition=1.0, gap=at_best.largest_gap, gap_b=at_biased.largest_gap)
    assert error <= min(limits)


def test_clients_that_are_alike_do_not_differ() -> None:
    found = heterogeneity(Quadratic([[1.0, 2.0]] * 3), [5.0, 7.0])
    assert found.diversity == pytest.approx(0, abs=1e-10)
    assert found.gradient == pytest.approx(math.hypot(4, 5))
    assert found.gap == pytest.approx(20.5)
    unknown = heterogeneity(Quadratic([[1.0, 2.0]] * 3), [5.0, 7.0], optima=math.nan)
    assert math.isnan(unknown.gap)
    assert [*unknown.numbers()] == ["diversity", "gradient"]
    assert type(found.diversity) is float


def test_noise_averages_out_over_draws() -> None:
    task = Quadratic([[0.0] * 4] * 50, noise=1.0)
    once, often = (heterogeneity(task, [0.0] * 4, draws=k).diversity for k in (1, 16))
    assert once == pytest.approx(4, rel=0.2)
    assert often == pytest.approx(4 / 16, rel=0.2)


def test_all_samples_count_once_in_whatever_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    task = synthetic(3, 1.0, 1.0, seed=1, dimension=4, classes=3, max_samples=80, ridge=0.1)
    w = np.linspace(-1, 1, task.d, dtype=np.float32)
    whole = heterogeneity(task, w)
    monkeypatch.setattr(measured, "BATCH", 7)
    pieces = heterogeneity(task, w, optima=task.optima)
    assert pieces[:4] == pytest.approx(whole[:4], rel=1e-4)
    assert whole.gap > 0
    assert (whole.losses >= whole.optima).all()
    assert float(np.asarray(task.weights) @ whole.losses) == pytest.approx(task.evaluate(w)["objective"], rel=1e-4)
    step, small = np.zeros(task.d, np.float32), 0.01
    step[2] = small
    slope = (heterogeneity(task, w + step).losses - heterogeneity(task, w - step).losses) / (2 * small)
    assert float(np.asarray(task.weights) @ slope**2 - (np.asarray(task.weights) @ slope) ** 2) <= whole.diversity


class Buffered(Quadratic):
    """A quadratic that claims a buffer."""

    initial_buffers = np.zeros(1)

    def load_buffers(self, buffers: Any) -> None: ...
    def read_buffers(self) -> Any: ...
    def evaluate(self, params: Any, buffers: Any = None) -> Any: ...


def with_buffers() -> Quadratic:
    return Buffered([[0.0]])


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda: heterogeneity(Quadratic([[0.0]]), [0.0, 1.0]), "have shape \\(1,\\)"),
        (lambda: heterogeneity(Quadratic([[0.0]]), [1e300]), "params must be finite"),
        (lambda: heterogeneity(with_buffers(), [0.0]), "without buffers"),
        (lambda: heterogeneity(Quadratic([[0.0]]), [0.0], draws=0), "draws must be"),
        (lambda: heterogeneity(Quadratic([[0.0]]), [0.0], optima=[1.0, 2.0]), "1 clients need 1 optima"),
        (
            lambda: heterogeneity(Quadratic([[0.0]]), [0.0], optima=np.inf),
            "optima must be one loss or one per client",
        ),
        (lambda: heterogeneity(Quadratic([[0.0]]), [0.0], optima=[[1.0]]), r"where it is unknown, got \[\[1.0\]\]"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(broken: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        broken()


def test_parameters_with_a_gradient_are_refused_in_one_sentence() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(BadInput, match="params must be a number or an array of numbers, got tensor"):
        heterogeneity(Quadratic([[1.0, 2.0]]), torch.ones(2, requires_grad=True))

"""The quadratic task against calculus, and local training on it in closed form."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput, Job, Local
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.tasks.quadratic import Quadratic


def some_task(seed: int, *, full: bool, noise: float = 0.0) -> Quadratic:
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((3, 2, 2))
    matrices = roots @ roots.transpose(0, 2, 1) + np.eye(2)
    curvature = matrices if full else rng.uniform(0.5, 2, (3, 2))
    return Quadratic(rng.standard_normal((3, 2)), curvature, weights=rng.random(3) + 0.1, noise=noise)


@given(st.integers(0, 2**32), st.booleans())
def test_the_gradient_is_that_of_the_loss(seed: int, full: bool) -> None:
    """Central differences are exact for a quadratic, up to rounding."""
    task, rng, still = some_task(seed, full=full), np.random.default_rng(seed), np.zeros(2)
    w, ε = rng.standard_normal(2), 1e-3
    for client in range(task.n):
        loss, gradient = task.gradient(w, client, still)
        slopes = [
            (task.gradient(w + ε * e, client, still)[0] - task.gradient(w - ε * e, client, still)[0]) / (2 * ε)
            for e in np.eye(2)
        ]
        np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-5)
        assert loss >= 0


@given(st.integers(0, 2**32), st.booleans())
def test_the_objective_is_least_at_the_optimum(seed: int, full: bool) -> None:
    task, rng = some_task(seed, full=full), np.random.default_rng(seed)
    best = task.optimum()
    slope = sum(float(a) * task.gradient(best, i, np.zeros(2))[1] for i, a in enumerate(task.weights))
    np.testing.assert_allclose(slope, 0, atol=1e-5)
    least = task.objective(best)
    assert all(task.objective(best + rng.standard_normal(2)) > least for _ in range(5))
    np.testing.assert_allclose(task.optimum([0, 1, 0]), task.centers[1], rtol=1e-9)
    assert task.evaluate(best)["distance"] == pytest.approx(0, abs=1e-12)
    assert task.evaluate(best)["objective"] == least


@given(st.integers(0, 2**32), st.integers(1, 6), st.floats(0, 1), st.integers(1, 5))
def test_local_training_has_a_closed_form(seed: int, steps: int, decay: float, t: int) -> None:
    """Without noise w_K - c = (1 - lr A)^K (w - c), and the loss is that at the parameters sent."""
    task, local = some_task(seed, full=False), Local(0.1, steps=steps, decay=decay)
    w = np.random.default_rng(seed).standard_normal(2).astype(np.float32)
    (reply,) = Serial(task, local).train([Job(w, np.array([0, 2]), 7, t, local)])
    for client, update, loss in zip([0, 2], reply.updates, reply.losses, strict=True):
        gap = w - task.centers[client]
        shrunk = (1 - 0.1 / (1 + decay * t) * task.curvature[client]) ** steps * gap
        np.testing.assert_allclose(update, shrunk - gap, rtol=1e-4, atol=1e-5)
        assert loss == pytest.approx(0.5 * gap @ (task.curvature[client] * gap), rel=1e-5)


@given(st.integers(0, 2**32), st.floats(0, 2))
def test_prox_and_drift_are_added_to_every_gradient(seed: int, prox: float) -> None:
    """Two steps from w: -lr (g(w) + drift), then -lr (g(w') + prox (w' - w) + drift)."""
    task, local = some_task(seed, full=True), Local(0.1, steps=2, prox=prox)
    rng = np.random.default_rng(seed)
    w, drift = rng.standard_normal(2).astype(np.float32), rng.standard_normal((1, 2)).astype(np.float32)
    (reply,) = Serial(task, local).train([Job(w, np.array([1]), 7, 1, local, drift)])
    A, c = task.curvature[1], task.centers[1]
    first = -0.1 * (A @ (w - c) + drift[0])
    second = -0.1 * (A @ (w + first - c) + prox * first + drift[0])
    np.testing.assert_allclose(reply.updates[0], first + second, rtol=1e-4, atol=1e-5)


def test_noise_has_its_deviation_and_its_stream() -> None:
    """The loss has none, the gradient has; the same client, round and seed draw the same."""
    task = some_task(0, full=False, noise=0.5)
    draws = np.array([b for t in range(400) for b in task.batches(0, Local(0.1), stream(0, "local", t, 0))])
    assert draws.std() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(2 * draws.size))
    assert abs(draws.mean()) < 4 * 0.5 / np.sqrt(draws.size)
    w = np.ones(2, np.float32)
    assert task.gradient(w, 0, draws[0])[0] == task.gradient(w, 0, draws[1])[0]
    np.testing.assert_allclose(
        task.gradient(w, 0, draws[0])[1] - task.gradient(w, 0, draws[1])[1], draws[0] - draws[1], atol=1e-6
    )
    engine = Serial(task, Local(0.1))
    jobs = [Job(w, np.array([0, 1]), seed, t, engine.local) for seed, t in ((0, 1), (0, 1), (1, 1), (0, 2))]
    first, same, *others = engine.train(jobs)
    np.testing.assert_array_equal(first.updates, same.updates)
    assert all(not np.array_equal(first.updates, other.updates) for other in others)
    twins = Serial(Quadratic(np.zeros((2, 2)), noise=0.5), Local(0.1))
    (reply,) = twins.train([Job(w, np.array([0, 1]), 0, 1, twins.local)])
    assert not np.array_equal(reply.updates[0], reply.updates[1])  # every client draws its own


def test_runs_begin_where_they_are_told() -> None:
    task = Quadratic([[1, 2]], start=[3, 4])
    assert task.init(0).dtype == np.float32
    np.testing.assert_array_equal(task.init(5), [3, 4])
    np.testing.assert_array_equal(Quadratic([[1, 2]]).init(0), [0, 0])


def test_weights_sum_to_one() -> None:
    np.testing.assert_array_equal(Quadratic(np.zeros((4, 1))).weights, np.full(4, 0.25, np.float32))
    np.testing.assert_array_equal(Quadratic(np.zeros((2, 1)), weights=[3, 1]).weights, [0.75, 0.25])


def test_random_tasks_depend_on_their_seed_alone() -> None:
    task, again, other = (Quadratic.random(4, 3, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(task.centers, again.centers)
    assert not np.array_equal(task.centers, other.centers)
    assert (task.curvature > 0).all()
    np.testing.assert_allclose(Quadratic.random(4, 3, seed=1, spread=2).centers, 2 * task.centers)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(task)).centers, task.centers)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Quadratic([1, 2]), r"centers must be \(n, d\), got shape \(2,\)"),
        (lambda: Quadratic([[1, 2]], [[1]]), r"curvature must have shape \(1, 2\) or \(1, 2, 2\), got \(1, 1\)"),
        (lambda: Quadratic([[1, 2]], [[[1, 1], [0, 1]]]), "curvature must be symmetric"),
        (lambda: Quadratic([[1], [2]], weights=[1, float("inf")]), "weights must be 2 numbers of at least 0"),
        (lambda: Quadratic([[1, 2]], noise=-1), "noise must be at least 0, got -1"),
        (lambda: Quadratic([[1, 2]], start=[0]), r"start must be \(2,\), got \(1,\)"),
        (lambda: Quadratic([[1, 2]], weights=[-1]), "weights must be 1 numbers of at least 0, not all 0"),
        (lambda: Quadratic([[1, 2]], weights=[0]), "weights must be 1 numbers of at least 0, not all 0"),
        (lambda: Quadratic([[1, 2]], weights=[1, 1]), "weights must be 1 numbers of at least 0, not all 0"),
    ],
)
def test_settings_are_checked(make: object, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        make()


def test_a_seed_is_a_whole_number() -> None:
    wrong: Any = [1]
    with pytest.raises(BadInput, match=r"seed must be a whole number, got \[1\]"):
        Quadratic.random(2, 2, seed=wrong)

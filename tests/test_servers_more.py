"""Yogi and Projection, and that every server is handed the parameters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstale.core import BadInput, Local
from fedstale.engines import Serial
from fedstale.participation import Bernoulli
from fedstale.simulate import simulate
from fedstale.simulate.servers import Adam, Affine, Box, Momentum, Onto, Projection, Sgd, Yogi
from fedstale.strategies import FedAvg
from fedstale.tasks.quadratic import Quadratic
from fedstale.testing import check_server

vectors = st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=3).map(lambda v: np.array(v, np.float32))
W = np.array([1.0, -2.0, 0.5], np.float32)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    steps=st.lists(vectors, min_size=1, max_size=6),
    lr=st.floats(0.01, 1),
    b1=st.floats(0, 0.95),
    b2=st.floats(0, 0.99),
)
def test_yogi_equals_its_formula(steps, lr, b1, b2):
    server = Yogi(lr, b1, b2, tau=0.01)
    m, state = np.zeros(3), server.init(3)
    assert (state.second == np.float32(0.01**2)).all()
    for step in steps:
        before, square = state.second, step * step  # in float32: which is larger decides
        change, state = server.apply(state, W, step)
        m = b1 * m + (1 - b1) * step.astype(np.float64)
        toward = [(v > Δ2) * -1 + (v < Δ2) * 1 for v, Δ2 in zip(before, square, strict=True)]
        np.testing.assert_allclose(
            state.second, before + (1 - b2) * np.multiply(toward, square), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(change, lr * m / (np.sqrt(state.second) + 0.01), rtol=1e-4, atol=1e-4)
        assert change.dtype == state.first.dtype == state.second.dtype == np.float32


@pytest.mark.parametrize("server", [Yogi(), Projection(1.0), Projection(2.0, Yogi())], ids=repr)
def test_keeps_the_contract_of_a_server(server):
    check_server(server)


def test_yogi_forgets_large_steps_more_slowly_than_adam():
    large, small = np.full(3, 10, np.float32), np.full(3, 0.1, np.float32)
    seconds = {}
    for server in (Adam(), Yogi()):
        _, state = server.apply(server.init(3), W, large)
        for _ in range(50):
            _, state = server.apply(state, W, small)
        seconds[server] = state.second
    assert (seconds[Yogi()] > 1.5 * seconds[Adam()]).all()


@settings(derandomize=True, deadline=None)
@given(params=vectors, step=vectors, radius=st.floats(0.1, 4), lr=st.floats(0.1, 2))
def test_projection_is_the_nearest_point_of_the_ball(params, step, radius, lr):
    change, _ = Projection(radius, Sgd(lr)).apply(None, params, step)
    target = params + np.float32(lr) * step
    norm, reached = np.linalg.norm(target), params + change
    if norm < radius * (1 - 1e-6):
        np.testing.assert_array_equal(change, np.float32(lr) * step)
    elif norm > radius * (1 + 1e-6):
        np.testing.assert_allclose(reached, target * (radius / norm), atol=1e-5)
    assert np.linalg.norm(reached) <= radius * (1 + 1e-5) + 1e-5
    assert change.dtype == np.float32


def test_projection_keeps_the_state_of_its_base():
    alone, held, inside = Momentum(0.5), Projection(1e6, Momentum(0.5)), W
    states = alone.init(3), held.init(3)
    for _ in range(3):
        one, first = alone.apply(states[0], inside, W)
        two, second = held.apply(states[1], inside, W)
        states = first, second
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("base", [Sgd(1.0), Momentum(0.3, 0.5)], ids=repr)
def test_a_run_in_the_ball_ends_at_the_best_point_of_the_ball(base):
    """Round bowls: the best point of the ball is the optimum, pulled back to the border."""
    task = Quadratic([[3.0, 4.0], [5.0, 4.0]], start=[0.0, -1.0])
    best = task.optimum() * 2 / np.linalg.norm(task.optimum())
    engine = Serial(task, Local(0.2, steps=1))
    for s in simulate(engine, FedAvg(), Bernoulli(1.0), rounds=150, server=Projection(2.0, base)):
        assert np.linalg.norm(s.params) <= 2 + 1e-5
    np.testing.assert_allclose(s.params, best, atol=1e-3)


@settings(derandomize=True, deadline=None)
@given(params=vectors, step=vectors, lr=st.floats(0.1, 2))
def test_other_projections_are_the_nearest_point_of_their_set(params, step, lr):
    w, d = params + np.float32(lr) * step, len(params)
    A, b = np.vstack([np.ones(d), np.arange(d)]), [1.0, 2.0]
    # the nearest point of {A w = b}: the least-squares correction, from the multipliers of the two rows
    onto = w - A.T @ np.linalg.lstsq(A @ A.T, A @ w - b, rcond=None)[0]
    low = np.linspace(-1, 0, d)
    for server, nearest in (
        (Box(low, 0.5, Sgd(lr)), [min(max(x, a), 0.5) for x, a in zip(w, low, strict=True)]),
        (Affine(A, b, Sgd(lr)), onto),
        (Onto(np.abs, Sgd(lr)), [abs(x) for x in w]),
        (Onto("numpy:abs", Sgd(lr)), [abs(x) for x in w]),
    ):
        change, _ = server.apply(server.init(d), params, step)
        np.testing.assert_allclose(params + change, nearest, atol=2e-5)
        assert change.dtype == np.float32
    diverged, _ = Onto(np.abs).apply(None, params, np.full(d, np.nan, np.float32))
    assert np.isnan(diverged).all(), "a step that diverged is not the fault of `nearest`"
    inside, _ = Box(-1e9, 1e9, Sgd(lr)).apply(None, params, step)
    np.testing.assert_array_equal(inside, np.float32(lr) * step)  # the bits of the base


def test_yogi_learns():
    task = Quadratic([[3.0, 4.0], [5.0, 4.0]])
    engine = Serial(task, Local(0.2, steps=2))
    *_, last = simulate(engine, FedAvg(), Bernoulli(1.0), rounds=300, server=Yogi(0.1))
    assert task.evaluate(last.params)["distance"] < 0.05


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Projection(0.0), "^radius must be above 0, got 0.0$"),
        (lambda: Box(1.0, 0.0), "^low must be at most high and below inf, .*, got 1.0, 0.0$"),
        (lambda: Box([0.0, 1.0]).init(3), "^low and high must be one number or 3, one per parameter"),
        (lambda: Affine([[1.0, 1.0], [1.0, 1.0]], [0.0, 1.0]), "^some w must have matrix w = values"),
        (lambda: Affine([1.0, 1.0]).init(3), "^matrix must have a column for each of 3 parameters"),
        (lambda: Onto("numpy"), "^nearest must be a function or its name"),
        (lambda: Onto(np.sum).apply(None, W, W), "^nearest must return shape"),
        (lambda: Onto(lambda w: w * np.nan).apply(None, W, W), "^nearest must return finite numbers, got"),
        (lambda: Box(np.inf, np.inf), "^low must be at most high and below inf, .*, got inf, inf$"),
        (
            lambda: Box(-np.inf, -np.inf),
            "^low must be at most high and below inf, high above -inf, got -inf, -inf$",
        ),
        (lambda: Affine([1.0, np.nan]), "^matrix and values must be finite, got"),
        (lambda: Projection(float("nan")), "^radius must be above 0, got nan$"),
        (lambda: Yogi(lr=0), "^lr must be above 0 and finite, got 0$"),
        (lambda: Yogi(beta1=1.0), r"^beta1 must be in \[0, 1\), got 1.0$"),
        (lambda: Yogi(beta2=-0.1), r"^beta2 must be in \[0, 1\), got -0.1$"),
        (lambda: Yogi(tau=0.0), "^tau must be above 0, got 0.0$"),
    ],
)
def test_wrong_settings_are_refused(make, sentence):
    with pytest.raises(BadInput, match=sentence):
        make()

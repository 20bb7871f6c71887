"""Server optimisers against their formulas, one number at a time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstale.core import BadInput, Server
from fedstale.simulate.servers import Adam, Momentum, Sgd

steps = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8)
rates = st.floats(0.001, 10)
shares = st.floats(0, 0.99)


def changes(server: Server, given: list[float]) -> list[float]:
    """What each step of a single parameter becomes; a second one that stands still must not move."""
    state, params, made = server.init(2), np.zeros(2, np.float32), []
    for step in given:
        change, state = server.apply(state, params, np.array([step, 0], np.float32))
        assert change.dtype == np.float32
        assert change[1] == 0
        params = params + change
        made.append(float(change[0]))
    return made


@given(steps, rates)
def test_sgd(given: list[float], lr: float) -> None:
    np.testing.assert_allclose(changes(Sgd(lr), given), [lr * g for g in given], rtol=1e-6, atol=1e-30)


def test_weight_decay_of_sgd_is_torchs_and_a_step_of_zeros_changes_nothing() -> None:
    import torch

    server, w = Sgd(0.5, weight_decay=0.1), torch.tensor([1.0, -2.0, 0.0], requires_grad=True)
    optimiser = torch.optim.SGD([w], lr=0.5, weight_decay=0.1)
    for step in ([0.3, 0.0, 1.0], [-1.0, 2.0, 0.0]):
        before, w.grad = w.detach().numpy().copy(), -torch.tensor(step)
        optimiser.step()
        change, _ = server.apply(None, before, np.array(step, np.float32))
        np.testing.assert_allclose(before + change, w.detach().numpy(), rtol=1e-6)
        assert change.dtype == np.float32
    assert not server.apply(None, w.detach().numpy(), np.zeros(3, np.float32))[0].any()


@given(steps, rates, shares)
def test_momentum(given: list[float], lr: float, momentum: float) -> None:
    """change_t = lr Σ_s momentum^(t-s) step_s."""
    wanted = [
        lr * math.fsum(momentum ** (t - s) * g for s, g in enumerate(given[: t + 1])) for t in range(len(given))
    ]
    scale = lr * sum(map(abs, given)) + 1e-9
    np.testing.assert_allclose(changes(Momentum(lr, momentum), given), wanted, rtol=0, atol=1e-5 * scale)


@given(steps, rates, shares, shares, st.floats(1e-3, 1))
def test_adam(given: list[float], lr: float, b1: float, b2: float, tau: float) -> None:
    """m_t = (1-β₁) Σ β₁^(t-s) g_s; v_t = β₂^(t+1) τ² + (1-β₂) Σ β₂^(t-s) g_s²; lr m / (√v + τ)."""
    wanted = []
    for t in range(len(given)):
        m = (1 - b1) * math.fsum(b1 ** (t - s) * g for s, g in enumerate(given[: t + 1]))
        v = b2 ** (t + 1) * tau**2 + (1 - b2) * math.fsum(
            b2 ** (t - s) * g * g for s, g in enumerate(given[: t + 1])
        )
        wanted.append(lr * m / (math.sqrt(v) + tau))
    scale = lr * sum(map(abs, given)) / tau + 1e-9
    np.testing.assert_allclose(changes(Adam(lr, b1, b2, tau), given), wanted, rtol=1e-4, atol=1e-5 * scale)


def test_adam_of_one_step_by_hand() -> None:
    """m = 0.1 · 2, v = 0.99 · 0.01² + 0.01 · 4."""
    wanted = 0.5 * 0.2 / (math.sqrt(0.99 * 0.0001 + 0.04) + 0.01)
    assert changes(Adam(lr=0.5, tau=0.01), [2.0]) == pytest.approx([wanted], rel=1e-6)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Sgd(1.0, weight_decay=-1e-4), "weight_decay must be at least 0 and finite, got -0.0001"),
        (lambda: Sgd(0), "lr must be above 0 and finite, got 0"),
        (lambda: Momentum(lr=-1), "lr must be above 0 and finite, got -1"),
        (lambda: Momentum(momentum=1.0), r"momentum must be in \[0, 1\), got 1.0"),
        (lambda: Adam(beta1=-0.1), r"beta1 must be in \[0, 1\), got -0.1"),
        (lambda: Adam(beta2=1), r"beta2 must be in \[0, 1\), got 1"),
        (lambda: Adam(tau=0), "tau must be above 0, got 0"),
        (lambda: Sgd(float("inf")), "lr must be above 0 and finite, got inf"),
        (lambda: Sgd(float("nan")), "lr must be above 0 and finite, got nan"),
    ],
)
def test_settings_are_checked(make: object, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        make()

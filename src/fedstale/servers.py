"""What the server does with a step: params + change.

Reddi et al., Adaptive Federated Optimization, ICLR 2021; with plain SGD and lr 1 the step is added as it is.
"""

import math
from dataclasses import field
from typing import NamedTuple

import numpy as np

from fedstale.core import LATER, Array, Server, State, part, require

__all__ = ["Adam", "Momentum", "Projection", "Sgd", "Yogi"]


def _check(lr: float, shares: dict[str, float], tau: float = 1.0) -> None:
    """Refuse a learning rate, moving averages' shares or an offset τ that cannot be used."""
    require(lr > 0, f"the server's lr must be above 0, got {lr}")
    require(lr < math.inf, f"the server's lr must be finite, got {lr}")
    for name, value in shares.items():
        require(0 <= value < 1, f"{name} must be in [0, 1), got {value}")
    require(tau > 0, f"tau must be above 0, got {tau}")


@part
class Sgd:
    """change = lr · (step - weight_decay · w). A step of zeros, as of a round without clients, changes nothing."""

    lr: float = 1.0
    weight_decay: float = field(default=0.0, metadata=LATER)

    def __post_init__(self) -> None:
        _check(self.lr, {})
        ok = 0 <= self.weight_decay < math.inf
        require(ok, f"weight_decay must be at least 0 and finite, got {self.weight_decay}")

    def init(self, d: int) -> None:
        return None

    def apply(self, state: None, params: Array, step: Array) -> tuple[Array, None]:
        if self.weight_decay and step.any():
            step = step - np.float32(self.weight_decay) * params
        return np.float32(self.lr) * step, None


@part
class Momentum:
    """v ← momentum · v + step; change = lr · v."""

    lr: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check(self.lr, {"momentum": self.momentum})

    def init(self, d: int) -> Array:
        return np.zeros(d, np.float32)

    def apply(self, velocity: Array, params: Array, step: Array) -> tuple[Array, Array]:
        velocity = np.float32(self.momentum) * velocity + step
        return np.float32(self.lr) * velocity, velocity


class Moments(NamedTuple):
    """Running means of the step and of its square."""

    first: Array  # (d,)
    second: Array  # (d,)


@part
class Adam:
    """FedAdam: m ← β₁ m + (1-β₁) step; v ← β₂ v + (1-β₂) step²; change = lr · m / (√v + τ)."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check(self.lr, {"beta1": self.beta1, "beta2": self.beta2}, self.tau)

    def init(self, d: int) -> Moments:
        return Moments(np.zeros(d, np.float32), np.full(d, self.tau**2, np.float32))

    def apply(self, state: Moments, params: Array, step: Array) -> tuple[Array, Moments]:
        b1, b2 = np.float32(self.beta1), np.float32(self.beta2)
        m: Array = b1 * state.first + (1 - b1) * step
        v: Array = b2 * state.second + (1 - b2) * step * step
        scale: Array = np.sqrt(v) + np.float32(self.tau)
        return np.float32(self.lr) * m / scale, Moments(m, v)


@part
class Yogi:
    """FedYogi: FedAdam with v ← v - (1-β₂) sign(v - step²) step², which forgets large steps slowly."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check(self.lr, {"beta1": self.beta1, "beta2": self.beta2}, self.tau)

    def init(self, d: int) -> Moments:
        return Moments(np.zeros(d, np.float32), np.full(d, self.tau**2, np.float32))

    def apply(self, state: Moments, params: Array, step: Array) -> tuple[Array, Moments]:
        b1, b2, square = np.float32(self.beta1), np.float32(self.beta2), step * step
        m: Array = b1 * state.first + (1 - b1) * step
        v: Array = state.second - (1 - b2) * np.sign(state.second - square) * square
        scale: Array = np.sqrt(v) + np.float32(self.tau)
        return np.float32(self.lr) * m / scale, Moments(m, v)


@part
class Projection:
    """The change of `base`, then the nearest point of the ball ‖w‖ ≤ radius around the origin."""

    radius: float
    base: Server = Sgd(1.0)

    def __post_init__(self) -> None:
        require(self.radius > 0, f"radius must be above 0, got {self.radius}")

    def init(self, d: int) -> State:
        return self.base.init(d)

    def apply(self, state: State, params: Array, step: Array) -> tuple[Array, State]:
        change, state = self.base.apply(state, params, step)
        w = params + change
        norm = float(np.sqrt(np.sum(np.square(w, dtype=np.float64))))
        return (change if norm <= self.radius else np.float32(self.radius / norm) * w - params), state

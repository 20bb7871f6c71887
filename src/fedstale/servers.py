"""What the server does with a step: params + change.

Reddi et al., Adaptive Federated Optimization, ICLR 2021; with plain SGD and lr 1 the step is added as it is.
"""

from typing import NamedTuple

import numpy as np

from fedstale.core import Array, part, require


def _rate(lr: float) -> None:
    require(lr > 0, f"the server's lr must be above 0, got {lr}")


def _share(name: str, value: float) -> None:
    require(0 <= value < 1, f"{name} must be in [0, 1), got {value}")


@part
class Sgd:
    """change = lr · step."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        _rate(self.lr)

    def init(self, d: int) -> None:
        return None

    def apply(self, state: None, step: Array) -> tuple[Array, None]:
        return np.float32(self.lr) * step, None


@part
class Momentum:
    """v ← momentum · v + step; change = lr · v."""

    lr: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _rate(self.lr)
        _share("momentum", self.momentum)

    def init(self, d: int) -> Array:
        return np.zeros(d, np.float32)

    def apply(self, velocity: Array, step: Array) -> tuple[Array, Array]:
        velocity = np.float32(self.momentum) * velocity + step
        return np.float32(self.lr) * velocity, velocity


class Moments(NamedTuple):
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
        _rate(self.lr)
        _share("beta1", self.beta1)
        _share("beta2", self.beta2)
        require(self.tau > 0, f"tau must be above 0, got {self.tau}")

    def init(self, d: int) -> Moments:
        return Moments(np.zeros(d, np.float32), np.full(d, self.tau**2, np.float32))

    def apply(self, state: Moments, step: Array) -> tuple[Array, Moments]:
        b1, b2 = np.float32(self.beta1), np.float32(self.beta2)
        m: Array = b1 * state.first + (1 - b1) * step
        v: Array = b2 * state.second + (1 - b2) * step * step
        scale: Array = np.sqrt(v) + np.float32(self.tau)
        return np.float32(self.lr) * m / scale, Moments(m, v)

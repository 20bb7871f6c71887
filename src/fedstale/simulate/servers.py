"""What the server does with a step: params + change, and projections onto a set, (2.3) of Rodio's thesis.

Reddi et al., Adaptive Federated Optimization, ICLR 2021; with plain SGD and lr 1 the step is added as it is.
"""

import math
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import LATER, Array, Floats, Server, State, imported, keep, part, require, shown
from fedstale.core.parts import NotNegativeFinite, Positive, PositiveFinite, Range

__all__ = ["Adam", "Affine", "Box", "Momentum", "Onto", "Projection", "Sgd", "Yogi"]

Averaged = Annotated[float, Range("in [0, 1)")]  # what a moving average keeps of its last value


@part
class Sgd:
    """change = lr · (step - weight_decay · w). A step of zeros, as of a round without clients, changes nothing."""

    lr: PositiveFinite = 1.0
    weight_decay: NotNegativeFinite = field(default=0.0, metadata=LATER)

    def init(self, d: int) -> None:
        return None

    def apply(self, state: None, params: Array, step: Array) -> tuple[Array, None]:
        if self.weight_decay and step.any():
            step = step - np.float32(self.weight_decay) * params
        return np.float32(self.lr) * step, None


@part
class Momentum:
    """v ← momentum · v + step; change = lr · v."""

    lr: PositiveFinite = 1.0
    momentum: Averaged = 0.9

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

    lr: PositiveFinite = 0.01
    beta1: Averaged = 0.9
    beta2: Averaged = 0.99
    tau: Positive = 1e-3

    def init(self, d: int) -> Moments:
        return Moments(np.zeros(d, np.float32), np.full(d, self.tau**2, np.float32))

    def apply(self, state: Moments, params: Array, step: Array) -> tuple[Array, Moments]:
        b1, v = np.float32(self.beta1), self._second(state.second, step)
        m: Array = b1 * state.first + (1 - b1) * step
        scale: Array = np.sqrt(v) + np.float32(self.tau)
        return np.float32(self.lr) * m / scale, Moments(m, v)

    def _second(self, v: Array, step: Array) -> Array:
        b2 = np.float32(self.beta2)
        return b2 * v + (1 - b2) * step * step


@part
class Yogi(Adam):
    """FedYogi: FedAdam with v ← v - (1-β₂) sign(v - step²) step², which forgets large steps slowly."""

    def _second(self, v: Array, step: Array) -> Array:
        square = step * step
        return v - (1 - np.float32(self.beta2)) * np.sign(v - square) * square


@part
class Projection:
    """The change of `base`, then the nearest point of the ball ‖w‖ ≤ radius around the origin."""

    radius: Positive
    base: Server = Sgd(1.0)

    def init(self, d: int) -> State:
        return self.base.init(d)

    def apply(self, state: State, params: Array, step: Array) -> tuple[Array, State]:
        change, state = self.base.apply(state, params, step)
        w = params + change
        norm = float(np.sqrt(np.sum(np.square(w, dtype=np.float64))))
        return (change if norm <= self.radius else np.float32(self.radius / norm) * w - params), state


@part
class Box:
    """The change of `base`, then the nearest point of the box low ≤ w ≤ high: one bound, or one per parameter."""

    low: npt.ArrayLike = -math.inf
    high: npt.ArrayLike = math.inf
    base: Server = Sgd(1.0)

    def __post_init__(self) -> None:
        low, high = (np.array(bound, np.float32) for bound in (self.low, self.high))
        ok = max(low.ndim, high.ndim) <= 1 and (low.size == high.size or 1 in (low.size, high.size))
        ok = ok and bool(((low <= high) & (low < math.inf) & (high > -math.inf)).all())
        got = f"got {shown(self.low)}, {shown(self.high)}"
        require(ok, f"low must be at most high and below inf, high above -inf, {got}")
        keep(self, "low", low)
        keep(self, "high", high)

    def init(self, d: int) -> State:
        sizes = [np.size(bound) for bound in (self.low, self.high)]
        require({*sizes} <= {1, d}, f"low and high must be one number or {d}, one per parameter, got {sizes}")
        return self.base.init(d)

    def apply(self, state: State, params: Array, step: Array) -> tuple[Array, State]:
        change, state = self.base.apply(state, params, step)
        w, low, high = params + change, np.asarray(self.low), np.asarray(self.high)
        return np.where((w < low) | (w > high), np.clip(w, low, high) - params, change), state


@part
class Affine:
    """The change of `base`, then the nearest point of {w : matrix w = values}, w - A⁺ (A w - b); A is (k, d)."""

    matrix: npt.ArrayLike
    values: npt.ArrayLike = 0.0
    base: Server = Sgd(1.0)

    def __post_init__(self) -> None:
        A = np.atleast_2d(np.array(self.matrix, np.float64))
        b = np.array(self.values, np.float64)
        ok = A.ndim == 2 and A.size > 0 and b.shape in [(), (len(A),)]
        require(ok, f"matrix must be (k, d) and values one number or k, got shapes {A.shape} and {b.shape}")
        ok = bool(np.isfinite(A).all() and np.isfinite(b).all())
        require(ok, f"matrix and values must be finite, got {shown(self.matrix)} and {shown(self.values)}")
        keep(self, "matrix", A)
        b = np.broadcast_to(b, len(A)).copy()
        keep(self, "values", b)
        meets = np.allclose(A @ (self._inverse @ b), b)
        require(meets, f"some w must have matrix w = values, got none for {shown(self.values)}")

    @cached_property
    def _inverse(self) -> Floats:
        return np.asarray(np.linalg.pinv(np.asarray(self.matrix)))  # (d, k)

    def init(self, d: int) -> State:
        shape = np.shape(self.matrix)
        require(shape[1] == d, f"matrix must have a column for each of {d} parameters, got shape {shape}")
        return self.base.init(d)

    def apply(self, state: State, params: Array, step: Array) -> tuple[Array, State]:
        change, state = self.base.apply(state, params, step)
        w, A, b = params.astype(np.float64) + change, np.asarray(self.matrix), np.asarray(self.values)
        return (w - self._inverse @ (A @ w - b) - params).astype(np.float32), state


@part
class Onto:
    """The change of `base`, then `nearest` of w: a function of your own, or its name "package.module:function"."""

    nearest: str | Callable[[Array], Any]
    base: Server = Sgd(1.0)

    def __post_init__(self) -> None:
        named = isinstance(self.nearest, str)
        ok = ":" in str(self.nearest) if named else callable(self.nearest)
        require(ok, f'nearest must be a function or its name "package.module:function", got {shown(self.nearest)}')

    @cached_property
    def _function(self) -> Callable[[Array], Any]:
        found: Any = imported(self.nearest, "nearest") if isinstance(self.nearest, str) else self.nearest
        require(callable(found), f"nearest must be a function of w, got {shown(found)}")
        made: Callable[[Array], Any] = found
        return made

    def init(self, d: int) -> State:
        return self.base.init(d)

    def apply(self, state: State, params: Array, step: Array) -> tuple[Array, State]:
        change, state = self.base.apply(state, params, step)
        w = np.asarray(self._function(params + change), np.float32)
        require(w.shape == params.shape, f"nearest must return shape {params.shape}, got {w.shape}")
        ok = bool(np.isfinite(w).all() or not np.isfinite(change).all())  # else a step diverged
        require(ok, f"nearest must return finite numbers, got {shown(w)}")
        return w - params, state

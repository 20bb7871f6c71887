"""How different the clients of a task are, measured at a model.

[T] Rodio, Client heterogeneity in federated learning systems, thesis, 2024, (1.6), (1.7), (2.9) and Theorem 2.3.4.
"""

from __future__ import annotations  # `help` shows the names of hints

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core.abilities import CountsSamples, HasOptima, buffered, keeps_own
from fedstale.core.local import Local
from fedstale.core.parts import Count, arguments_checked, normalised, per_client, require, shown
from fedstale.core.protocols import Task
from fedstale.core.records import Array, Floats
from fedstale.core.rng import stream

__all__ = ["Heterogeneity", "heterogeneity"]

BATCH = 1024  # samples whose gradient is computed at a time


class Heterogeneity(NamedTuple):
    """Statistical heterogeneity at a model w; at w* the constants of the theorems, at w_B* those with a prime."""

    gap: float  # Σ a_i (F_i(w) - F_i*): Γ of (1.6) at w*
    largest_gap: float  # max_i F_i(w) - F_i*: Γ of (2.9) at w*, Γ' of Theorem 2.3.4 at w_B*
    diversity: float  # σ_g² = Σ a_i ‖∇F_i(w) - ∇F(w)‖² (1.7)
    gradient: float  # ‖∇F(w)‖: 0 says that w is w*
    losses: Floats  # (n,) F_i(w)
    optima: Floats  # (n,) F_i*

    def numbers(self) -> dict[str, float]:
        """The four numbers by name, without those that are unknown."""
        return {name: value for name, value in list(self._asdict().items())[:4] if math.isfinite(value)}


@arguments_checked
def heterogeneity(
    task: Task, params: npt.ArrayLike, *, optima: npt.ArrayLike | None = None, draws: Count = 1
) -> Heterogeneity:
    """Γ, Γ' and σ_g² of [T], measured with all training samples of all clients at the model `params`.

    F_i* are `optima`; if left out, the task's own `optima`, which trains every client alone, or unknown, so that
    the gaps are nan. `optima=math.nan` leaves them out. A task without samples, such as a quadratic, is asked for
    `draws` batches per client, whose mean is taken: noise adds its variance over `draws` to σ_g².
    """
    ok = buffered(task) is None and keeps_own(task) is None
    require(ok, "heterogeneity needs a model without buffers that training changes or parts that clients keep")
    with np.errstate(over="ignore"):
        w = np.asarray(params, np.float32)
    ok = w.shape == (task.d,) and bool(np.isfinite(w).all())
    require(ok, f"params must be finite and have shape ({task.d},), got shape {w.shape}")
    a, best = normalised(task.weights, task.n), _optima(task, optima)
    losses, mean, seconds = np.zeros(task.n), np.zeros(task.d), 0.0
    for client in range(task.n):
        losses[client], gradient = _whole(task, w, client, draws)
        mean += a[client] * gradient
        seconds += a[client] * float(gradient @ gradient)
    gaps = losses - best
    spread = max(0.0, float(seconds) - float(mean @ mean))  # Σ a ‖g‖² - ‖Σ a g‖²
    return Heterogeneity(float(a @ gaps), float(gaps.max()), spread, float(np.linalg.norm(mean)), losses, best)


def _optima(task: Task, optima: npt.ArrayLike | None) -> Floats:
    known = task.optima if optima is None and isinstance(task, HasOptima) else optima
    best = np.asarray(math.nan if known is None else known, np.float64)
    ok = best.ndim < 2 and not np.isinf(best).any()
    require(ok, f"optima must be one loss or one per client, nan where it is unknown, got {shown(best.tolist())}")
    return per_client(best, task.n, "optima")


def _whole(task: Task, params: Array, client: int, draws: int) -> tuple[float, Floats]:
    """F_i(w) and ∇F_i(w), (d,), the mean over all batches by their samples."""
    size = int(task.samples[client]) if isinstance(task, CountsSamples) else 0
    local = Local(lr=1.0, batch=BATCH, epochs=1) if size else Local(lr=1.0, steps=draws)
    loss, gradient, left, total = 0.0, np.zeros(task.d), size, size or draws
    for batch in task.batches(client, local, stream(0, "heterogeneity", client)):
        share = (min(BATCH, left) if size else 1) / total
        value, slope = task.gradient(params, client, batch)
        loss, gradient, left = loss + share * value, gradient + share * slope, left - BATCH
    return loss, gradient

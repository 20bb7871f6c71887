"""CA-Fed: leave out the clients that slow training down more than their absence biases it.

Rodio et al., Federated Learning under Heterogeneous and Correlated Client Availability, INFOCOM 2023;
Algorithm 3 of Rodio, Client heterogeneity in federated learning systems, thesis, 2024.
"""

import math
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import (
    Array,
    Availability,
    BadInput,
    Floats,
    HasOptima,
    Ids,
    Mask,
    Round,
    Task,
    part,
    require,
    weighted_sum,
)


class Losses(NamedTuple):
    latest: Floats  # (n,) F̂_i, as last reported; before that, the mean of what was reported first of all
    lowest: Floats  # (n,) F̂_i*, the least so far
    begun: bool  # whether anybody has reported


@part
class CAFed:
    """step = Σ (a_i / p_i) Δ_i over those who are kept, decided anew each round to make small

        ε = Σ b_i (F̂_i - F̂_i*) + 4 κ̄² TV(a, b)² max_i(F̂_i - F̂_i*),   b_i = a_i / Σ_kept a_j or 0.

    Clients are tried by |λ_i| descending, of equals the rarer first, then by p_i ascending: one is left out
    if ε falls, and by at least `tau`. `kappa2` is κ̄²: large, all are kept, which is Unbiased; small, speed
    is bought with bias.
    `optimum` is F_i*, one for all or one per client: without it a rare client looks better than it is. "local"
    is what each client could reach alone, which a simulation finds out.
    """

    kappa2: float = 1.0
    tau: float = 0.0
    optimum: npt.ArrayLike | Literal["local"] | None = None
    inverse_weighting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.kappa2 >= 0, f"kappa2 must be at least 0, got {self.kappa2}")
        require(self.tau >= 0, f"tau must be at least 0, got {self.tau}")
        if self.optimum is not None and not isinstance(self.optimum, str):
            object.__setattr__(self, "optimum", np.array(self.optimum, np.float64))

    def bind(self, task: Task) -> "CAFed":
        """The rule with the F_i* of a task, if it asks for them."""
        if not isinstance(self.optimum, str):
            return self
        if not isinstance(task, HasOptima):
            raise BadInput(f"optimum 'local' needs a task with `optima`, got {type(task).__name__}")
        return CAFed(self.kappa2, self.tau, task.optima)

    def init(self, n: int, d: int) -> Losses:
        require(not isinstance(self.optimum, str), "optimum 'local' is found by a simulation; here, give numbers")
        lowest = np.asarray(math.inf if self.optimum is None else self.optimum, np.float64)
        require(lowest.shape in [(), (n,)], f"optimum must be one loss or {n}, got {lowest.size}")
        return Losses(np.zeros(n), np.full(n, lowest), False)

    def select(self, state: Losses, a: Availability) -> tuple[Ids, Losses]:
        who, loss = a.clients[np.isfinite(a.losses)], a.losses[np.isfinite(a.losses)]
        if not state.begun and len(who) == 0:
            return a.clients, state
        latest = state.latest.copy() if state.begun else np.full(len(a.weights), loss.mean(dtype=np.float64))
        latest[who] = loss
        lowest, kept = np.minimum(state.lowest, latest), a.weights > 0
        for order in (np.lexsort((a.probs, -np.abs(a.mixing))), np.argsort(a.probs, kind="stable")):
            self._thin(kept, order[kept[order]], a.weights / a.weights.sum(dtype=np.float64), latest - lowest)
        return a.clients[kept[a.clients]], Losses(latest, lowest, True)

    def _thin(self, kept: Mask, order: Ids, weights: Floats, gaps: Floats) -> None:
        """One pass over `kept`, O(n): with q_i = a_i / π̂_i, TV(a, b) is the weight that is left out, 1 - A."""
        a, g, Γ = weights[order].tolist(), (weights * gaps)[order].tolist(), 4 * self.kappa2 * float(gaps.max())
        A, G, left = math.fsum(a), math.fsum(g), len(a)  # Σ a_i and Σ a_i (F̂_i - F̂_i*) of those who are kept
        residue = 1e-12 * G / A if A > 0 else 0.0  # what running sums can leave behind where nothing is left
        for i, a_i, g_i in zip(order.tolist(), a, g, strict=True):
            ε, rest = G / A + Γ * (1 - A) ** 2, max(A - a_i, 1e-30)
            fall = ε - (G - g_i) / rest - Γ * (1 - rest) ** 2
            if left > 1 and fall >= self.tau and fall > max(1e-9 * ε, residue):  # rounding is no fall
                A, G, left, kept[i] = rest, G - g_i, left - 1, False

    def aggregate(self, state: Losses, r: Round) -> tuple[Array, Losses]:
        return weighted_sum(r.inverse(), r.received()).astype(np.float32), state

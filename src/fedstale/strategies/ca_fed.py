"""CA-Fed: leave out the clients that slow training down more than their absence biases it.

Rodio et al., Federated Learning under Heterogeneous and Correlated Client Availability, INFOCOM 2023;
Algorithm 3 of Rodio, Client heterogeneity in federated learning systems, thesis, 2024.
"""

from dataclasses import field, replace
from math import fsum
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Availability, Floats, HasOptima, Ids, Mask, Round, weighted_sum
from fedstale.core.parts import LATER, NotNegative, PositiveShare, keep, part, require


class Reported(NamedTuple):
    """The state of the rule."""

    latest: Floats  # (n,) F̂_i, the filtered reports
    lowest: Floats  # (n,) F̂_i*, the least so far
    excluded: Mask  # (n,) left out in the last round, whether available or not


@part
class CAFed:
    """step = Σ (a_i / p_i) Δ_i over the clients that are kept, chosen anew each round to make ε small:
    ε = Σ b_i (F̂_i - F̂_i*) + 4 κ̄² TV(a, b)² max_i(F̂_i - F̂_i*) with b_i = a_i / Σ_kept a_j or 0.
    Clients are tried by |λ_i|, that is by λ(P_i) = (|λ_i| + 1) / 2 (A.209), or with `by_magnitude = False` by λ_i
    with its sign (A.218), descending, then by p_i ascending; one is left out if ε falls, by at least `tau`, but
    never the last. A large `kappa2` (κ̄²) keeps all, which is Unbiased.
    `optimum` is F_i*, one or one per client; "local" is the least loss that each client reaches alone.
    A report is filtered, F̂_i ← (1 - beta) F̂_i + beta F_i (2.22); with beta 1 the newest counts.
    """

    kappa2: NotNegative = 1.0
    tau: NotNegative = 0.0
    optimum: npt.ArrayLike | Literal["local"] | None = None
    by_magnitude: bool = True
    beta: PositiveShare = field(default=1.0, metadata=LATER)
    inverse_weighting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.optimum is not None and not isinstance(self.optimum, str):
            keep(self, "optimum", np.array(self.optimum, np.float64))

    def bind(self, task: object) -> "CAFed":
        local = task.optima if isinstance(self.optimum, str) and isinstance(task, HasOptima) else self.optimum
        return replace(self, optimum=local)

    def init(self, n: int, d: int) -> Reported:
        require(not isinstance(self.optimum, str), "optimum 'local' needs a simulation whose task has `optima`")
        lowest = np.asarray(np.inf if self.optimum is None else self.optimum, np.float64)
        require(lowest.shape in [(), (n,)], f"optimum must be one loss or {n}, got {lowest.size}")
        return Reported(np.full(n, np.nan), np.full(n, lowest), np.zeros(n, np.bool_))

    def select(self, state: Reported, a: Availability) -> tuple[Ids, Reported]:
        (F, lowest, _), here = state, np.isfinite(a.losses)
        latest = np.where(np.isnan(F), a.losses[here].mean(dtype=np.float64) if here.any() else np.nan, F)
        before, now = F[a.clients[here]], a.losses[here].astype(np.float64)
        latest[a.clients[here]] = np.where(np.isnan(before), now, (1 - self.beta) * before + self.beta * now)
        lowest, weights = np.fmin(lowest, latest), a.weights / a.weights.sum(dtype=np.float64)
        kept, λ = a.weights > 0, np.abs(a.mixing) if self.by_magnitude else a.mixing
        for order in (np.lexsort((a.probs, -λ)), np.argsort(a.probs, kind="stable")):  # of equals the rarer first
            self._thin(kept, order[kept[order]], weights, latest - lowest)
        return a.clients[kept[a.clients]], Reported(latest, lowest, ~kept)

    def _thin(self, kept: Mask, order: Ids, weights: Floats, gaps: Floats) -> None:
        """One pass over `kept`, O(n): with q_i = a_i / π̂_i, TV(a, b) is the weight that is left out, 1 - A."""
        a, g, Γ = weights[order].tolist(), (weights * gaps)[order].tolist(), 4 * self.kappa2 * float(gaps.max())
        A, G, left = fsum(a), fsum(g), len(a)  # Σ a_i and Σ a_i (F̂_i - F̂_i*) of those who are kept
        residue = 1e-12 * G / A if A > 0 else 0.0  # what running sums can leave behind where nothing is left
        for i, a_i, g_i in zip(order.tolist(), a, g, strict=True):
            ε, rest = G / A + Γ * (1 - A) ** 2, max(A - a_i, 1e-30)
            fall = ε - (G - g_i) / rest - Γ * (1 - rest) ** 2
            if left > 1 and fall >= self.tau and fall > max(1e-9 * ε, residue):  # rounding is no fall
                A, G, left, kept[i] = rest, G - g_i, left - 1, False

    def aggregate(self, state: Reported, r: Round) -> tuple[Array, Reported]:
        return weighted_sum(r.inverse(), r.received()).astype(np.float32), state

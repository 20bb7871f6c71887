"""What lost packets cost: averaging updates that are corrected for the loss, and averaging the models that arrive.

[T] Rodio, Client heterogeneity in federated learning systems, thesis, 2024, chapter 4.
"""

from __future__ import annotations  # `help` shows the names of hints

from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, Range, arguments_checked, keep_numbers, normalised, part, per_client, require
from fedstale.core.parts import Count, NotNegativeFinite, PositiveFinite

__all__ = [
    "DmaBound", "Lossy", "LossyConstant", "Retries", "dma_bound", "loss_variance", "lossy_constant", "retries",
    "upga_bound", "upga_rate",
]  # fmt: skip


@part
class Lossy:
    """What Theorem 4.3.1 of [T] assumes of the objective and of local training."""

    smoothness: PositiveFinite  # L
    convexity: float  # μ
    noise: npt.ArrayLike  # σ_i²: one for all, or one each
    gap: NotNegativeFinite  # Γ = F* - Σ α_i F_i*, Definition 4.3.1
    stochastic_gradient: NotNegativeFinite  # G, root of the most E‖∇F_i(w, B)‖²
    steps: Count  # K

    def __post_init__(self) -> None:
        ok = 0 < self.convexity <= self.smoothness
        require(ok, f"convexity must be above 0 and at most smoothness, got {self.convexity} and {self.smoothness}")
        keep_numbers(self, "noise", "at least 0 and finite")


class LossyConstant(NamedTuple):
    """The constant C (4.7), by cause."""

    noise: float  # Σ α_i² σ_i²
    drift: float  # 2 (K - 1)² G²
    diversity: float  # 6 L Γ
    losses: float  # K G² Σ α_i² q_i / (1 - q_i)

    def total(self) -> float:
        return sum(self)


@arguments_checked
def lossy_constant(problem: Lossy, loss: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> LossyConstant:
    """C of (4.7) of [T] for clients whose replies are lost with probabilities q_i; `weights` are the α_i."""
    q, α, _ = _losses(loss, weights)
    K, G2, σ2 = problem.steps, problem.stochastic_gradient**2, per_client(problem.noise, len(q), "variances")
    return LossyConstant(
        noise=float(α**2 @ σ2),
        drift=2 * (K - 1) ** 2 * G2,
        diversity=6 * problem.smoothness * problem.gap,
        losses=K * G2 * float(α**2 @ (q / (1 - q))),
    )


@arguments_checked
def upga_rate(problem: Lossy, t: Count) -> float:
    """η_t = (2 / μ) / (8 κ + t - 1), the learning rate of round t in Theorem 4.3.1 of [T]; rounds count from 1."""
    return 2 / problem.convexity / (8 * problem.smoothness / problem.convexity + t - 1)


@arguments_checked
def upga_bound(
    problem: Lossy, loss: npt.ArrayLike, rounds: Count, *, distance: NotNegativeFinite,
    weights: npt.ArrayLike | None = None,
) -> float:  # fmt: skip
    """Theorem 4.3.1 of [T], (4.6), on E F(w) - F* after t = `rounds` of UPGA-PL: it vanishes as 1 / t.

    κ / (8κ + t) · (2 K C / μ + 4 L ‖w_1 - w*‖²), where `distance` is ‖w_1 - w*‖.
    """
    L, μ = problem.smoothness, problem.convexity
    C = lossy_constant(problem, loss, weights).total()
    return L / μ / (8 * L / μ + rounds) * (2 * problem.steps * C / μ + 4 * L * distance**2)


@arguments_checked
def loss_variance(sent: npt.ArrayLike, loss: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> float:
    """E‖Σ_S α_i x_i / (1 - q_i) - Σ_i α_i x_i‖² = Σ α_i² q_i / (1 - q_i) ‖x_i‖² for the vectors x_i, a row each.

    Lemma A.1 of [T]: (C.4) if clients send models, as in UDMA-PL, so that it stays; (C.3) if they send updates,
    as in UPGA-PL, so that it vanishes with the rate.
    """
    q, α, _ = _losses(loss, weights)
    x = np.asarray(sent, np.float64)
    ok = x.ndim == 2 and len(x) == len(q) and bool(np.isfinite(x).all())
    require(ok, f"sent must be a finite vector for each of {len(q)} clients, got shape {x.shape}")
    return float((α**2 * q / (1 - q)) @ (x**2).sum(axis=1))


class Retries(NamedTuple):
    """What it takes to reach a target if a lost reply is sent again up to so many times."""

    retries: int  # R
    rounds: int  # in which (4.6) falls to the target
    slots: float  # of a round: the transmissions of the slowest client, on average
    time: float  # rounds · (training + slots), in slots


@arguments_checked
def retries(
    problem: Lossy, loss: npt.ArrayLike, target: PositiveFinite, *, distance: NotNegativeFinite,
    training: NotNegativeFinite = 0.0, most: Annotated[int, Range("in [0, 10000]")] = 30,
    weights: npt.ArrayLike | None = None,
) -> list[Retries]:  # fmt: skip
    """For R = 0, …, `most` retransmissions: rounds and time until (4.6) of [T] promises E F(w) - F* ≤ `target`.

    Section 6.2 of [T] asks for the R of least time. With R a reply is lost with q_i^(R+1), so that fewer rounds do;
    but a round lasts as long as its slowest client sends, Σ_{k=0}^R (1 - Π_i (1 - q_i^k)) slots on average, after
    `training`, which is in slots too.
    """
    q, _, _ = _losses(loss, weights)
    κ, found, slots = problem.smoothness / problem.convexity, list[Retries](), 0.0
    for R in range(most + 1):
        slots += 1 - float(np.prod(1 - q**R))
        once = upga_bound(problem, q ** (R + 1), 1, distance=distance, weights=weights)
        rounds = max(1, int(np.ceil(once * (8 * κ + 1) / target - 8 * κ)))  # (4.6) falls as 1 / (8 κ + t)
        found.append(Retries(R, rounds, slots, rounds * (training + slots)))
    return found


class DmaBound(NamedTuple):
    """Chen's bound on E F(w) - F* after t rounds of DMA-PL."""

    start: float  # A^t (F(w_1) - F*)
    residual: float  # what heterogeneity and losses leave
    contraction: float  # A: the bound says nothing in the long run from 1 on
    floor: float  # the residual after infinitely many rounds, infinite if A ≥ 1

    def total(self) -> float:
        return self.start + self.residual


@arguments_checked
def dma_bound(
    problem: Lossy, loss: npt.ArrayLike, rounds: Count, *, zeta1: NotNegativeFinite, zeta2: NotNegativeFinite,
    excess: NotNegativeFinite, weights: npt.ArrayLike | None = None,
) -> DmaBound:  # fmt: skip
    """(4.3) of [T], by M. Chen et al., 2021: full gradients, one local step, and an error that stays.

    A^t (F(w_1) - F*) + (2 ζ_1 / L) Σ α_i q_i (1 - A^t) / (1 - A) with A = 1 - μ/L + (4 μ ζ_2 / L) Σ α_i q_i. ζ_1
    and ζ_2 say how different the clients' data are, `excess` is F(w_1) - F*. Of `problem`, only L and μ are used.
    """
    lost, L, μ = _losses(loss, weights)[2], problem.smoothness, problem.convexity
    A = 1 - μ / L + 4 * μ * zeta2 / L * lost
    each = 2 * zeta1 / L * lost
    with np.errstate(over="ignore"):
        power = float(np.power(A, rounds, dtype=np.float64))
    residual = each * (rounds if A == 1 else (1 - power) / (1 - A)) if each else 0.0
    floor = 0.0 if each == 0 else each / (1 - A) if A < 1 else float("inf")
    return DmaBound(power * excess, residual, A, floor)


def _losses(loss: npt.ArrayLike, weights: npt.ArrayLike | None) -> tuple[Floats, Floats, float]:
    """q_i, α_i and Σ α_i q_i."""
    q = np.asarray(loss, np.float64)
    ok = q.ndim == 1 and q.size > 0 and bool(((q >= 0) & (q < 1)).all())
    require(ok, f"loss must be one probability in [0, 1) per client, got {loss!r}")
    α = np.asarray(normalised(weights, len(q)), np.float64)
    return q, α, float(α @ q)

"""The true error of a network with early exits that nodes train together.

[T] Rodio, Client heterogeneity in federated learning systems, thesis, 2024, Theorem 5.3.1 and appendix D, which
writes J for K.
"""

from __future__ import annotations  # `help` shows the names of hints

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Count, Floats, Natural, Range, arguments_checked, part, require
from fedstale.core.parts import NotNegativeFinite, PositiveFinite
from fedstale.theory.bias import total_variation
from fedstale.theory.checks import check_sums

__all__ = ["ExitBound", "ExitConstant", "Exits", "exit_bound", "exit_constant", "exit_rate"]


@part
class Exits:
    """What Theorem 5.3.1 of [T] assumes of the losses, of the set W of models and of local training."""

    smoothness: PositiveFinite  # L
    convexity: float  # μ
    noise: npt.ArrayLike  # σ_{i,e}²: one number, one per exit, or nodes × exits
    gap: NotNegativeFinite  # Γ = max F_{i,e}(w*) - F_{i,e}* (D.19)
    diameter: PositiveFinite  # diam(W)
    largest_loss: PositiveFinite  # M: losses are in [0, M]
    steps: Count  # K

    def __post_init__(self) -> None:
        ok = 0 < self.convexity <= self.smoothness
        require(ok, f"convexity must be above 0 and at most smoothness, got {self.convexity} and {self.smoothness}")
        σ2 = np.asarray(self.noise, np.float64)
        ok = σ2.size > 0 and σ2 in Range("at least 0 and finite")
        require(ok, f"noise must be at least 0 and finite, got {self.noise}")

    def offset(self) -> float:
        """γ = max{8 κ, K} - 1."""
        return max(8 * self.smoothness / self.convexity, self.steps) - 1


class ExitConstant(NamedTuple):
    """The constant B (D.50), by cause."""

    noise: float  # Σ α_{i,e}² σ_{i,e}²
    diversity: float  # 6 L Γ
    drift: float  # 8 (K - 1)² G²
    sampling: float  # 4 K² Σ α_{i,e}² (1 - p_{i,e}) / p_{i,e} G_{i,e}

    def total(self) -> float:
        return sum(self)


class ExitBound(NamedTuple):
    """A bound on the true error (5.6): what the data, the weights of the exits and the rounds each leave."""

    generalization: float  # 2 ε_gen (D.2), (D.3), (D.7)
    bias: float  # 2 ε_bias (D.9)
    optimisation: float  # ε_opt (D.49)

    def total(self) -> float:
        return sum(self)


@arguments_checked
def exit_rate(problem: Exits, t: Count, k: Natural) -> float:
    """2 / (μ (γ + (t - 1) K + k + 1)): the rate of step k = 0, …, K - 1 of round t = 1, 2, …"""
    require(k < problem.steps, f"k must be below {problem.steps}, the steps of a round, got {k}")
    return 2 / (problem.convexity * (problem.offset() + (t - 1) * problem.steps + k + 1))


@arguments_checked
def exit_constant(
    problem: Exits, samples: npt.ArrayLike, p: npt.ArrayLike, used: npt.ArrayLike, *,
    server_lr: PositiveFinite = 1.0,
) -> ExitConstant:  # fmt: skip
    """B of Theorem D.4 of [T], (D.50) to (D.53).

    `samples` are the |D_i|, p_{i,e} (nodes × exits) how often node i trains exit e, `used` the weights Λ̃_e. Exits
    with p_{i,e} = 0 are not the node's. (D.52) prints G = max G_{i,e} and (D.50) has G²; G_{i,e} bounds a *squared*
    gradient already (D.18), so G² = max G_{i,e} was read, as E‖∇F‖² ≤ G² asks.
    """
    sizes, chance, Λ = _system(samples, p, used)
    own, K = chance > 0, problem.steps
    α = np.where(own, server_lr * Λ * sizes[:, None] / _held(sizes, chance), 0.0)
    σ2 = np.broadcast_to(np.asarray(problem.noise, np.float64), chance.shape)
    G = σ2 + (problem.smoothness * problem.diameter) ** 2  # G_{i,e}
    missed = np.where(own, (1 - chance) / np.where(own, chance, 1.0), 0.0)
    return ExitConstant(
        noise=float((α**2 * σ2).sum()),
        diversity=6 * problem.smoothness * problem.gap,
        drift=8 * (K - 1) ** 2 * float(G[own].max()),
        sampling=4 * K**2 * float((α**2 * missed * G).sum()),
    )


@arguments_checked
def exit_bound(
    problem: Exits, samples: npt.ArrayLike, p: npt.ArrayLike, used: npt.ArrayLike, *,
    target: npt.ArrayLike, dimensions: npt.ArrayLike, rounds: Count, distance: NotNegativeFinite,
    server_lr: PositiveFinite = 1.0, constant: PositiveFinite = 320.0,
) -> ExitBound:  # fmt: skip
    """Theorem 5.3.1 of [T], (5.7), with the constants of (D.2), (D.7), (D.9) and (D.49).

    2 Σ_e Λ̃_e M C √(Pdim_e / |D_e|) + 4 M TV(Λ̃, Λ) + κ / (γ + K T) · (2 B / μ + μ (γ + 1) / 2 · ‖w_1 - w*‖²).
    `target` are the Λ_e, `dimensions` the pseudo-dimensions, `distance` is ‖w_1 - w*‖, which (D.49) prints without
    norm and square, and C = `constant`. |D_e| counts the samples of the nodes that train exit e.
    """
    sizes, chance, Λ = _system(samples, p, used)
    Pdim = np.asarray(dimensions, np.float64)
    ok = Pdim.shape == Λ.shape and bool((Pdim >= 0).all())
    require(ok, f"dimensions must be one per exit, got {dimensions!r}")
    ok = np.shape(target) == Λ.shape
    require(ok, f"target must be one weight for each of the {len(Λ)} exits, got {target!r}")
    check_sums(Λ, target)
    M, μ, γ = problem.largest_loss, problem.convexity, problem.offset()
    B = exit_constant(problem, samples, p, used, server_lr=server_lr).total()
    inside = 2 * B / μ + μ * (γ + 1) / 2 * distance**2
    return ExitBound(
        generalization=2 * M * constant * float(Λ @ np.sqrt(Pdim / _held(sizes, chance))),
        bias=4 * M * total_variation(Λ, target),
        optimisation=problem.smoothness / μ / (γ + problem.steps * rounds) * inside,
    )


def _held(sizes: Floats, chance: Floats) -> Floats:
    """(exits,) |D_e|."""
    return np.asarray(sizes @ (chance > 0))


def _system(samples: npt.ArrayLike, p: npt.ArrayLike, used: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
    sizes, chance, Λ = (np.asarray(x, np.float64) for x in (samples, p, used))
    ok = chance.ndim == 2 and chance.size > 0 and sizes.shape == chance.shape[:1] and Λ.shape == chance.shape[1:]
    require(ok, "p must be nodes × exits, with one of samples per node and one of used per exit, "
            f"got shapes {chance.shape}, {sizes.shape} and {Λ.shape}")  # fmt: skip
    require(bool(((chance >= 0) & (chance <= 1)).all()), f"p must be probabilities, got {p!r}")
    require(bool((sizes > 0).all() and (Λ >= 0).all()), "samples must be above 0 and used at least 0")
    require(bool((chance > 0).any(axis=0).all()), "every exit must be trained by some node, got one with p = 0")
    return sizes, chance, Λ

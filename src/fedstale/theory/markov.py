"""How fast a Markov participation forgets: spectrum, constants, relaxation and mixing time.

[T] Rodio, Client heterogeneity in federated learning systems, thesis, 2024, section 2.3, Lemma B.16, appendix F.
"""

from __future__ import annotations  # `help` shows the names of hints

import math
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, Range, arguments_checked, require

__all__ = ["Mixing", "mixing", "mixing_time", "mixing_time_bounds", "product_chain", "stationary", "two_state"]

Inside = Annotated[float, Range("above 0 and below 1")]

STATES = 4096  # of a product chain that is written out: a matrix of 128 MB
LONGEST = 2**40  # rounds, after which powers of a chain are rounding errors


class Mixing(NamedTuple):
    """How fast a chain, or several independent ones together, comes to its stationary distribution."""

    second: float  # λ̄₂(P), the second largest modulus of the eigenvalues (A.209)
    rate: float  # λ(P) = (λ̄₂(P) + 1) / 2
    constant: float  # C_P (A.136)
    start: int  # T_P (A.137): 0, because all Jordan blocks have size 1 here
    relaxation: float  # t_rel = 1 / (1 - λ̄₂(P))
    rho_min: float  # the least stationary probability of a state
    states: float  # M; may be too many to count them exactly

    def distance(self, t: float) -> float:
        """C_P λ(P)^t of (2.5): a bound on max |[P^t]_ij - ρ_j|."""
        return self.constant * float(self.rate**t)


@arguments_checked
def two_state(availability: Inside, eigenvalue: float) -> Floats:
    """(2, 2) the chain of a client, off and on, with P(off → on) = (1-λ)π and P(on → on) = λ + (1-λ)π."""
    π, λ = availability, eigenvalue
    come, stay = (1 - λ) * π, λ + (1 - λ) * π
    ok = λ < 1 and 0 <= come <= 1 and 0 <= stay <= 1
    require(ok, f"eigenvalue must be below 1 and leave probabilities in [0, 1], got {λ} for availability {π}")
    return np.array([[1 - come, come], [1 - stay, stay]])


@arguments_checked
def product_chain(*chains: npt.ArrayLike) -> Floats:
    """P = ⊗ P_i, the chain of independent clients together (A.210); M = Π M_i states."""
    found = [_chain(chain) for chain in chains]
    states = math.prod(len(chain) for chain in found)
    require(len(found) > 0, "product_chain needs a chain, got none")
    require(states <= STATES, f"a product chain has at most {STATES} states, got {states}")
    together: Floats = np.ones((1, 1))
    for chain in found:
        together = np.asarray(np.kron(together, chain), np.float64)
    return together


@arguments_checked
def stationary(chain: npt.ArrayLike) -> Floats:
    """(M,) ρ with ρᵀ P = ρᵀ and Σ ρ = 1."""
    P = _chain(chain)
    M = len(P)
    ρ = np.linalg.lstsq(np.vstack([P.T - np.eye(M), np.ones(M)]), np.append(np.zeros(M), 1.0))[0]
    return np.asarray(ρ, np.float64)


@arguments_checked
def mixing(*chains: npt.ArrayLike) -> Mixing:
    """λ(P), C_P and T_P of (2.5), Lemma B.16 of [T]; several chains are independent clients (A.214).

    C_P = (Σ_{i≥2} n_i²)^½ ‖U‖_F ‖U⁻¹‖_F depends on how the eigenvectors are scaled: they have norm 1 here. The
    product of chains has λ̄₂ = max_i λ̄₂(P_i), and U = ⊗ U_i, so that its M states are never written out. Chains
    must be diagonalisable, as every two-state chain is: then n_i = 1, Σ n_i² = M - 1 and T_P = 0.
    """
    require(len(chains) > 0, "mixing needs a chain, got none")
    second, norms, rho_min, states = zip(*(_spectrum(_chain(chain)) for chain in chains), strict=True)
    slowest, M = max(second), math.prod(map(float, states))
    constant = math.sqrt(M - 1) * math.prod(norms)
    return Mixing(slowest, (slowest + 1) / 2, constant, 0, 1 / (1 - slowest), math.prod(rho_min), M)


@arguments_checked
def mixing_time(chain: npt.ArrayLike, eps: Inside = 0.25) -> int:
    """t_mix(ε) = min {t : max_a ‖[P^t]_a - ρ‖_TV ≤ ε}, appendix F.A of [T]; exact, by powers of P."""
    P = _chain(chain)
    _forgets(P)
    ρ = stationary(P)

    def far(t: int) -> bool:
        return 0.5 * float(np.abs(np.linalg.matrix_power(P, t) - ρ).sum(axis=1).max()) > eps

    high = 1
    while far(high):
        high *= 2
        require(high < LONGEST, f"eps must be larger than what rounding leaves, got {eps} for this chain")
    low = high // 2 if high > 1 else -1  # the distance never grows with t: bisect in (low, high]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if far(middle) else (low, middle)
    return high


@arguments_checked
def mixing_time_bounds(chain: Mixing, eps: Inside = 0.25) -> tuple[float, float]:
    """(t_rel - 1) log(1 / 2ε) ≤ t_mix(ε) ≤ log(1 / (ε ρ_min)) t_rel, appendix F.A of [T]; for reversible chains.

    Two-state chains and their products are reversible.
    """
    low = (chain.relaxation - 1) * math.log(1 / (2 * eps))
    return low, chain.relaxation * -(math.log(eps) + math.log(chain.rho_min))


def _chain(chain: npt.ArrayLike) -> Floats:
    P = np.asarray(chain, np.float64)
    ok = P.ndim == 2 and 0 < P.shape[0] == P.shape[1] and bool((P >= 0).all())
    require(ok and np.allclose(P.sum(axis=1), 1), "a chain must be a square matrix whose rows are probabilities")
    return P


def _forgets(P: Floats) -> tuple[float, float]:
    """λ̄₂ and ρ_min of a chain that forgets where it began."""
    second = float(np.sort(np.abs(np.linalg.eigvals(P)))[-2]) if len(P) > 1 else 0.0
    rho_min = float(stationary(P).min())
    ok = second < 1 - 1e-12 and rho_min > 1e-12
    require(ok, f"a chain must be irreducible and aperiodic, got a second eigenvalue of {second:.6g}")
    return second, rho_min


def _spectrum(P: Floats) -> tuple[float, float, float, int]:
    """λ̄₂, ‖U‖ ‖U⁻¹‖, ρ_min and M of one chain."""
    second, rho_min = _forgets(P)
    U = np.linalg.eig(P)[1]
    require(np.linalg.cond(U) < 1e7, "a chain must be diagonalisable, got one with too few eigenvectors")
    norms = float(np.linalg.norm(U) * np.linalg.norm(np.linalg.inv(U)))
    return second, norms, rho_min, len(P)

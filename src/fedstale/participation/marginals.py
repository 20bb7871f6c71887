"""The exact chance to be among `size` of the available, chosen uniformly.

A client that is there is chosen with probability min(1, size / |available|), and |available| is a sum of
independent variables: its distribution is never written down, only its characteristic function.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Floats, Ids
from fedstale.participation.groups import Kind

Complex = npt.NDArray[np.complex128]
NEGLIGIBLE = 36.0  # e⁻³⁶ ≈ 2·10⁻¹⁶


def uniform(kinds: Iterable[Kind], n: int, size: int) -> Array:
    """(n,) Σ over the kinds of round of share · p_i · E[min(1, size / |available|) | i is there]."""
    total = np.zeros(n)
    for kind in kinds:
        total += (kind.share * kind.p * kept(kind, size))[kind.group]
    return np.clip(total, 0, 1).astype(np.float32)


def kept(kind: Kind, size: int) -> Floats:
    """(c,) E[min(1, size / |available|)] in this kind of round, given that a client of group c is there.

    E[g(X)] = Σ_k φ_X(θ_k) ĝ_k over θ_k = 2πk / L, for L no shorter than the range of X. The φ of everybody
    is a product; the factor of the client that is there is divided out and replaced by e^(iθ).
    """
    p, jump, times, unit = _units(kind)
    low, L = _range(p, jump, times)
    x = np.arange(low, low + L)
    g = np.empty(L)
    g[x % L] = np.minimum(1.0, size / np.maximum(x, 1))
    k = _frequencies(p, jump, times, L)
    ĝ = np.fft.rfft(g)[k] / L * np.where(k == 0, 1, 2)  # twice: the other half of the grid is its conjugate

    logφ: Complex = np.zeros(len(k), np.complex128)
    for block, _, factor in _factors(p, jump, k, L):
        logφ += (times[block, None] * np.log(factor)).sum(axis=0)
    φĝ = np.exp(logφ) * ĝ
    kept = [(there / factor * φĝ).real.sum(axis=1) for _, there, factor in _factors(p, jump, k, L)]
    return np.concatenate(kept)[unit]


def _units(kind: Kind) -> tuple[Floats, Ids, Ids, Ids]:
    """What comes independently, equals put together: p, how many clients it is, how often it is there, whose."""
    count = np.bincount(kind.group, minlength=len(kind.p))
    if not kind.together:
        return kind.p, np.ones_like(count), count, np.arange(len(count))
    (p, jump), unit = np.unique(np.stack([kind.p, count]), axis=1, return_inverse=True)
    return p, jump.astype(np.int64), np.bincount(unit), unit


def _range(p: Floats, jump: Ids, times: Ids) -> tuple[int, int]:
    """The least value and the (odd) length of a range that X leaves with negligible probability (Bernstein)."""
    σ2, μ = float(times * jump**2 @ (p * (1 - p))), float(times * jump @ p)
    reach = NEGLIGIBLE / 3 * float(np.max(jump * ((p > 0) & (p < 1))))
    t = reach + np.sqrt(reach**2 + 2 * NEGLIGIBLE * σ2)
    surely, possibly = int((times * jump)[p == 1].sum()), int((times * jump)[p > 0].sum())
    low = max(surely, int(np.floor(μ - t)))
    high = min(possibly, int(np.ceil(μ + t + np.max(jump * (1 - p)))))
    return low, (high - low + 1) | 1  # odd, so that no factor is 0


def _frequencies(p: Floats, jump: Ids, times: Ids, L: int) -> Ids:
    """Half of the grid, without the k where |φ| ≤ exp(½ - Σ p(1-p)(1 - cos θ_k·jump)) is negligible."""
    k = np.arange(L // 2 + 1)
    decay = np.full(len(k), -0.5)
    for size in np.unique(jump):
        decay += (times * p * (1 - p))[jump == size].sum() * (1 - np.cos(2 * np.pi / L * (k * size % L)))
    return k[decay <= NEGLIGIBLE]


def _factors(p: Floats, jump: Ids, k: Ids, L: int) -> Iterator[tuple[Ids, Complex, Complex]]:
    """Blocks of groups with e^(iθ·jump) and 1 - p + p e^(iθ·jump), each (block, k)."""
    roots = np.exp(2j * np.pi / L * np.arange(L))
    for block in np.array_split(np.arange(len(p)), 1 + len(p) * len(k) // 2**20):
        there = roots[jump[block, None] * k % L]
        yield block, there, 1 + p[block, None] * (there - 1)

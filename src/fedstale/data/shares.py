"""Samples at random, in given proportions."""

import numpy as np
import numpy.typing as npt

from fedstale.core import Ids, keep, part, require


@part
class Shares:
    """Samples at random: client i gets shares[i] / Σ shares of them, to the nearest whole sample."""

    shares: npt.ArrayLike

    def __post_init__(self) -> None:
        shares = np.array(self.shares, np.float64)
        ok = shares.ndim == 1 and shares.size > 0 and bool((shares >= 0).all()) and 0 < shares.sum() < np.inf
        require(ok, f"shares must be numbers of at least 0, one for each client and not all 0, got {self.shares!r}")
        keep(self, "shares", shares)

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        shares = np.asarray(self.shares)
        require(len(shares) == n, f"{n} clients need {n} shares, got {len(shares)}")
        cuts = np.rint(np.cumsum(shares)[:-1] / shares.sum() * len(labels)).astype(np.int64)
        return np.split(rng.permutation(len(labels)), cuts)


def by_layer(widths: tuple[int, ...], shares: tuple[float, ...]) -> Shares:
    """Every layer of a tree holds its share, the same for each of its nodes."""
    each = [share / width for width, share in zip(widths, shares, strict=True)]
    return Shares(np.repeat(each, widths))

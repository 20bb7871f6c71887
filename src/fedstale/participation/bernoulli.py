"""Independent coins: every client is available with its own probability, every round anew."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Mask, keep, part, per_client, require


@part
class Bernoulli:
    """Client i is available with probability p_i, independently of everything.

    `p` is one probability for all clients or a list with one per client.
    """

    p: npt.ArrayLike

    def __post_init__(self) -> None:
        p = np.array(self.p, np.float64)
        ok = p.ndim <= 1 and p.size > 0 and bool(((p >= 0) & (p <= 1)).all())
        require(ok, f"a participation probability must be in [0, 1], one or one per client, got {self.p}")
        keep(self, "p", p)

    def probs(self, n: int) -> Array:
        return per_client(self.p, n, "probabilities").astype(np.float32)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        p = per_client(self.p, n, "probabilities")
        while True:
            yield rng.random(n) < p


@part
class TwoGroups:
    """The first half of the clients is always there, the last n // 2 come with probability p_min."""

    p_min: float

    def __post_init__(self) -> None:
        require(0 <= self.p_min <= 1, f"p_min must be in [0, 1], got {self.p_min}")

    def probs(self, n: int) -> Array:
        return self._coins(n).probs(n)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        return self._coins(n).rows(n, rng)

    def _coins(self, n: int) -> Bernoulli:
        return Bernoulli(np.where(np.arange(n) < n - n // 2, 1.0, self.p_min))

"""Independent coins: every client is available with its own probability, every round anew."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Mask, part, require


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
        p.flags.writeable = False
        object.__setattr__(self, "p", p)

    def probs(self, n: int) -> Array:
        p = np.asarray(self.p)
        require(p.ndim == 0 or len(p) == n, f"{n} clients need {n} probabilities, got {p.size}")
        return np.broadcast_to(p, n).astype(np.float32)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        self.probs(n)
        p = np.broadcast_to(np.asarray(self.p), n)
        while True:
            yield rng.random(n) < p


@part
class TwoGroups:
    """The first half of the clients is always there, the last n // 2 come with probability p_min."""

    p_min: float

    def __post_init__(self) -> None:
        require(0 <= self.p_min <= 1, f"p_min must be in [0, 1], got {self.p_min}")

    def probs(self, n: int) -> Array:
        return np.where(np.arange(n) < n - n // 2, 1.0, self.p_min).astype(np.float32)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        p = np.where(np.arange(n) < n - n // 2, 1.0, self.p_min)
        while True:
            yield rng.random(n) < p

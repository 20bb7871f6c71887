"""A rest after every visit, as mobile keyboards train.

The minimum separation of arXiv 2410.01209 and of Gboard's trainers: a device takes part at most once in R rounds.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Count, Mask, Natural, keep_numbers, part, per_client, stream


@part
class MinimumSeparation:
    """In every round `size` clients, drawn with chances ∝ `p`, of those that have rested for `rest` rounds.

    All of them if they are fewer. `p` is one number for all or one per client, and only ratios count. With
    rest = n / size - 1 clients come in a fixed cycle. The marginals are shares of `draws` rounds from a stream of
    their own, with a standard error of at most √(p_i / draws).
    """

    size: Count
    rest: Natural
    p: npt.ArrayLike = 1.0
    draws: Count = 20_000

    def __post_init__(self) -> None:
        keep_numbers(self, "p", "above 0 and finite")

    def probs(self, n: int) -> Array:
        rows = islice(self.rows(n, stream(0, "separation", "marginals")), self.draws)
        return np.asarray(sum(rows, np.zeros(n)) / self.draws, np.float32)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        p, free = per_client(self.p, n, "chances"), np.zeros(n, np.int64)  # the round from which each may come
        t = 0
        while True:
            rested = np.flatnonzero(free <= t)
            if len(rested) > self.size:
                rested = rng.choice(rested, self.size, replace=False, p=p[rested] / p[rested].sum())
            row = np.zeros(n, np.bool_)
            row[rested] = True
            free[rested] = t + 1 + self.rest
            t += 1
            yield row

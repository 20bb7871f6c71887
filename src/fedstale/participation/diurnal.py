"""Day and night, in several time zones."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Count, Floats, Mask, NotNegative, Range, keep, part, require
from fedstale.participation.groups import Kind, checked_members, group_of


@part
class Diurnal:
    """Independent coins whose probability follows the hour, later in every next cluster (time zone).

    Cluster c of C has p = mean + amplitude · sin 2π((t-1) / rounds_per_day - c / C) in round t. The
    marginals are the average of a day, which is the mean. `members` is the cluster 0, 1, … of each
    client, blocks of neighbours if left out.
    """

    mean: float = 0.3
    amplitude: NotNegative = 0.2
    rounds_per_day: Annotated[int, Range("at least 2")] = 24
    clusters: Count = 1
    members: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        low, high = self.mean - self.amplitude, self.mean + self.amplitude
        ok = low >= -1e-12 and high <= 1 + 1e-12
        require(ok, f"mean ± amplitude must stay in [0, 1], got {self.mean:g} ± {self.amplitude:g}")
        keep(self, "members", checked_members(self.members, self.clusters))

    def probs(self, n: int) -> Array:
        group_of(n, self.clusters, self.members)
        return np.full(n, self.mean, np.float32)

    def kinds(self, n: int) -> Iterator[Kind]:
        cluster = group_of(n, self.clusters, self.members)
        for hour in range(self.rounds_per_day):
            yield Kind(1 / self.rounds_per_day, self._at(hour), cluster)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        cluster = group_of(n, self.clusters, self.members)
        while True:
            for hour in range(self.rounds_per_day):
                yield rng.random(n) < self._at(hour)[cluster]

    def _at(self, hour: int) -> Floats:
        """(clusters,) the probability in a round of the day."""
        turn = hour / self.rounds_per_day - np.arange(self.clusters) / self.clusters
        return np.clip(self.mean + self.amplitude * np.sin(2 * np.pi * turn), 0, 1)

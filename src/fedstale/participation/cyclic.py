"""Groups that take turns, round the clock."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Count, Mask, Natural, keep, part, require
from fedstale.participation.groups import MOST, Kind, checked_members, group_of


@part
class Cyclic:
    """Group g is on for `on` rounds, then off for `off`, and starts g / groups of a cycle after group 0.

    The defaults are five groups that take turns of 100 rounds. Round 1 falls `offset` rounds into the
    cycle. Nothing is random, unless `random_offset` adds an offset that is drawn once a run, any place
    in the cycle being equally likely. The marginals are shares of a cycle. `members` is the group 0, 1,
    … of each client, blocks of neighbours if left out.
    Wang and Ji, A Unified Analysis of Federated Learning with Arbitrary Client Participation, 2022, section 6.
    """

    groups: int = 5
    on: Count = 100
    off: Natural = 400
    offset: Natural = 0
    random_offset: bool = False
    members: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        require(1 <= self.groups <= MOST, f"groups must be from 1 to {MOST}, got {self.groups}")
        ok = self.on + self.off < 2**62
        require(ok, f"on and off must be below 2**62 together, got {self.on} and {self.off}")
        keep(self, "members", checked_members(self.members, self.groups))

    def probs(self, n: int) -> Array:
        group_of(n, self.groups, self.members)
        return np.full(n, self.on / (self.on + self.off), np.float32)

    def kinds(self, n: int) -> Iterator[Kind]:
        period, group = self.on + self.off, group_of(n, self.groups, self.members)
        changes = np.unique(np.r_[self._starts(), self._starts() + self.on] % period)  # a group comes or goes
        for begin, end in zip(changes, np.r_[changes[1:], changes[0] + period], strict=True):
            yield Kind((end - begin) / period, self._groups_on(begin).astype(np.float64), group)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        period, group = self.on + self.off, group_of(n, self.groups, self.members)
        place = self.offset + (int(rng.integers(period)) if self.random_offset else 0)
        while True:
            yield self._groups_on(place)[group]
            place = (place + 1) % period

    def _starts(self) -> npt.NDArray[np.int64]:
        """(groups,) the place in the cycle at which each group comes."""
        return np.arange(self.groups) * (self.on + self.off) // self.groups

    def _groups_on(self, place: int) -> Mask:
        return (place - self._starts()) % (self.on + self.off) < self.on

"""The ring of whole numbers modulo 2³² in which secure aggregation adds: in a simulation as in a deployment.

A number is rounded to a multiple of a step; one beyond the range is cut there, and counted. A client's memory is
rounded as a whole and sent as the difference of two roundings, so that the sum of all memories never drifts.
"""

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, PositiveFinite, part, require

Codes = npt.NDArray[np.uint32]
Whole = npt.NDArray[np.int64]
DIGIT = 4096  # a number that is no coordinate is sent as two digits: its range is so many times wider
LEVELS = 1 << 30


@part
class Ring:
    """Numbers in [-`range`, `range`], for up to `most` clients in a round.

    The step is range · most / 2³⁰: 0.000007 for 8 and 1,000. Coordinates are those of updates times the client's
    weight, relative to the mean weight, and times 1 / p_i.
    """

    range: PositiveFinite = 8.0
    most: int = 1000

    def __post_init__(self) -> None:
        require(3 <= self.most <= 1 << 16, f"most must be from 3 to {1 << 16} clients, got {self.most}")

    @property
    def step(self) -> float:
        """The distance of two neighbours."""
        return self.range / self._top

    @property
    def _top(self) -> int:
        return LEVELS // self.most

    def encode(self, sums: Floats, before: Floats, after: Floats, numbers: Floats) -> Codes:
        """What a client adds; `before` and `after` (d,) are its memory times its weight."""
        wide = self.range * DIGIT
        high = self._codes(numbers, wide)
        low = self._codes(
            np.clip(np.nan_to_num(numbers), -wide, wide) - high * (self.step * DIGIT), self.step * DIGIT
        )
        cut = sum(
            int((~(np.abs(x) <= most)).sum())
            for x, most in ((sums, self.range), (after, self.range), (numbers, wide))
        )
        parts = (self._codes(sums, self.range), self._codes(after, self.range) - self._codes(before, self.range))
        return np.concatenate([*parts, high, low, [min(cut, self._top)]]).astype(np.uint32)

    def decode(self, total: Codes, k: int, d: int) -> tuple[Floats, Floats, Floats, int]:
        """The k sums, the change of the memories (d,), the numbers, and how many entries were cut."""
        signed, wide = total.view(np.int32).astype(np.float64), self.step * DIGIT
        high, low = np.split(signed[k + d : -1], 2)
        numbers = high * wide + low * (wide / self._top)
        return signed[:k] * self.step, signed[k : k + d] * self.step, numbers, int(signed[-1])

    def _codes(self, x: Floats, largest: float) -> Whole:
        return np.rint(np.clip(np.nan_to_num(x) / largest, -1, 1) * self._top).astype(np.int64)

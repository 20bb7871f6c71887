"""The coordinate-wise median and the trimmed mean: a minority of liars cannot move them far.

Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.
"""

from typing import Annotated

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Ids, Range, Round, part
from fedstale.memory import Coding, Float32, Memory, latest


def trimmed(rows: npt.NDArray[np.float64], share: float) -> Array:
    """(d,) the mean of each coordinate without the `share` smallest and the `share` largest of its values."""
    ordered, counts = np.sort(rows, axis=0), np.sum(~np.isnan(rows), axis=0)  # nan sorts to the end
    cut = np.minimum((share * counts).astype(np.int64), (np.maximum(counts, 1) - 1) // 2)
    place = np.arange(len(rows))[:, None]
    kept = (place >= cut) & (place < counts - cut)
    step: npt.NDArray[np.float64] = np.where(kept, ordered, 0).sum(axis=0) / np.maximum(kept.sum(axis=0), 1)
    return step.astype(np.float32)


@part
class TrimmedMean:
    """step = the mean of each coordinate over S, without the `trim` smallest and the `trim` largest share.

    Holds against less than `trim` liars; every client counts alike, whatever its a_i and p_i. With `stale`
    the latest update of every client heard so far takes part, so that a few liars are not the majority of
    a small round.
    """

    trim: Annotated[float, Range("at least 0 and below 0.5")] = 0.2
    stale: bool = False
    memory: Coding = Float32()

    def init(self, n: int, d: int) -> Memory | None:
        return Memory.zeros(n, d, self.memory) if self.stale else None

    def aggregate(self, memory: Memory | None, r: Round) -> tuple[Array, Memory | None]:
        return trimmed(latest(memory, r), self.trim), memory

    def forget(self, memory: Memory | None, clients: Ids) -> Memory | None:
        return None if memory is None else memory.forget(clients)


@part
class Median:
    """step = the median of each coordinate over S; of an even number of values, the mean of the middle two.

    Holds against less than half of liars, and far from the mean where honest clients differ. `stale` as for
    TrimmedMean.
    """

    stale: bool = False
    memory: Coding = Float32()

    def init(self, n: int, d: int) -> Memory | None:
        return Memory.zeros(n, d, self.memory) if self.stale else None

    def aggregate(self, memory: Memory | None, r: Round) -> tuple[Array, Memory | None]:
        return trimmed(latest(memory, r), 0.5), memory

    def forget(self, memory: Memory | None, clients: Ids) -> Memory | None:
        return None if memory is None else memory.forget(clients)

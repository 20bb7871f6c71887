"""The last update of every client, n × d, with its weighted sum kept as it changes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Ids, Mask


@dataclass
class Memory:
    """Rows h_i in float32 (zero before the first update) and Σ a_i h_i in float64.

    A write costs O(d), so a round costs O(m·d), never O(n·d). Untouched rows take no real memory:
    the operating system hands out pages when they are written.
    """

    rows: Array  # (n, d)
    written: Ids  # (n,) round of the last write, 0 before the first: staleness is t - written
    weights: Array  # (n,) the a_i that `total` was summed with
    total: npt.NDArray[np.float64]  # (d,)

    @classmethod
    def zeros(cls, n: int, d: int) -> "Memory":
        return cls(
            rows=np.zeros((n, d), np.float32),
            written=np.zeros(n, np.int64),
            weights=np.zeros(n, np.float32),
            total=np.zeros(d, np.float64),
        )

    def weighted_sum(self, weights: Array) -> npt.NDArray[np.float64]:
        """Σ a_i h_i; summed anew only if the weights are not those of the last call."""
        if weights is not self.weights and not np.array_equal(weights, self.weights):
            self.total[:] = 0
            for i in np.flatnonzero(self.written):
                self.total += float(weights[i]) * self.rows[i].astype(np.float64)
        self.weights = weights
        return self.total

    def write(self, i: int, update: Array, arrived: Mask, t: int) -> None:
        """h_i ← update, on the coordinates that arrived."""
        row = self.rows[i]
        change = (update.astype(np.float64) - row) * float(self.weights[i])
        if arrived.all():
            self.total += change
            row[:] = update
        else:
            self.total += np.where(arrived, change, 0.0)
            np.copyto(row, update, where=arrived)
        if arrived.any():
            self.written[i] = t

"""The last update of every client, n × d, with its weighted sum kept as it changes."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Ids, Mask, Round, require
from fedstale.memory.codings import Coding, Float32, keys
from fedstale.memory.exchange import Floats, Passing, exchange
from fedstale.memory.rows import File, Ram


class Memory:
    """Rows h_i (zero before the first update) and Σ a_i h_i in float64.

    A write costs O(d), so a round costs O(m·d), never O(n·d). A row is what its coding can express, and
    the sum is that of the rows as they are, so that a rule may use both.
    """

    def __init__(self, n: int, d: int, coding: Coding = Float32()) -> None:
        self.coding, self.shape = coding, (n, d)
        self.kept: Ram | File = (
            Ram(n, d, coding.dtype) if coding.folder is None else File(coding.folder, n, d, coding.dtype)
        )
        self.scales: Array = np.zeros(n, np.float32)
        self.written: Ids = np.zeros(n, np.int64)  # round of the last write, 0 before: staleness is t - written
        self.weights: Array = np.zeros(n, np.float32)  # the a_i that `total` was summed with
        self.total: Floats = np.zeros(d)

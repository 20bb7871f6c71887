"""Linear models with cross entropy where numba is installed: a client after the other in one compiled loop."""

import numpy as np
import torch

from fedstale.engines.batched.chunks import Chunk
from fedstale.engines.batched.rows import Rows
from fedstale.kernels import load
from fedstale.tasks.supervised import Supervised

PORTION = 8 << 20  # multiplications of one step of a chunk: enough to be worth a thread


class Linear:
    """Samples are read where they lie, and nothing but the weights is kept from step to step."""

    def __init__(self, task: Supervised) -> None:
        self.x, self.y = task.train.x.flatten(1).numpy(), task.train.y.numpy()
        self.d = int(task.d)

    def wide(self, size: int, batch: int) -> int:
        """All alike: what a draw is filled up with is not read."""
        return batch

    def room(self, b: int, sharers: int) -> int:
        return max(1, PORTION // (sharers * b * self.d))

    def run(self, chunk: Chunk, rows: Rows, training: bool) -> None:
        index = torch.from_numpy(chunk.rows)
        decay, shift = rows.decay(index), rows.shift(index)
        load("linear").linear(
            self.x, self.y, chunk.samples(), chunk.sizes, chunk.sharers, training,
            index.numpy(), rows.job.numpy(), rows.params.numpy(), rows.rate.numpy(),
            np.ones(len(index), np.float32) if decay is None else 1 + decay.numpy(),
            np.empty((0, self.d), np.float32) if shift is None else shift.numpy(),
            rows.updates.numpy(), rows.losses.numpy(),
        )  # fmt: skip
        rows.losses[index] += rows.penalty[index]

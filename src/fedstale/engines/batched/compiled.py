"""Linear models, MLPs, small CNNs, GRUs and LSTMs with cross entropy where numba is installed: compiled loops."""

from itertools import pairwise
from math import prod

import numpy as np
import torch

from fedstale.engines.batched.chunks import Chunk, Rows
from fedstale.engines.kernels import load
from fedstale.tasks.supervised import Supervised

PORTION = 8 << 20  # multiplications of one step of a chunk: enough to be worth a thread


class Compiled:
    """Rows one after the other, a few samples at a time, whose activations stay in the cache."""

    def __init__(self, task: Supervised) -> None:
        self.x, self.y, self.d = task.train.x.flatten(1).numpy(), task.train.y.numpy(), int(task.d)
        self.portion = PORTION
        if task.gates:
            self.y, self.products = self.y.reshape(len(self.y), -1), task.gates.products
            self.network = load("recurrent").Network(task.gates, self.d)
        elif task.dense:
            self.network = load("dense").Network(task.dense)
            self.products = sum(i * o for i, o in pairwise(task.dense))
            self.portion = 2 * PORTION  # whose steps are so short that handing over a chunk shows
        else:
            stages = task.stages or ()
            self.network = load("convolutional").Network(stages)
            self.products = sum(s.inputs * s.outputs * prod(s.kernel) * prod(s.conv) for s in stages)

    def wide(self, size: int, batch: int) -> int:
        """The batch size for all draws: padding is not read."""
        return batch

    def room(self, b: int, sharers: int) -> int:
        """Draws that are worth a thread."""
        return max(1, self.portion // (sharers * b * self.products))

    def run(self, chunk: Chunk, rows: Rows, training: bool) -> None:
        """Train the rows of a chunk, or only compute their losses."""
        index = torch.from_numpy(chunk.rows)
        decay, shift, none = rows.decay(index), rows.shift(index), np.zeros(len(index), np.float32)
        self.network.train(
            self.x, self.y, chunk.samples(), chunk.sizes, chunk.sharers, training,
            index.numpy(), rows.job.numpy(), rows.params.numpy(), rows.rate[index].numpy(),
            none if decay is None else decay.numpy(),
            np.empty((0, self.d), np.float32) if shift is None else shift.numpy(),
            none if rows.momentum is None else rows.momentum[index].numpy(),
            rows.updates.numpy(), rows.losses.numpy(),
        )  # fmt: skip
        rows.losses[index] += rows.penalty[index]


class Linear:
    """Rows one after the other; samples are read where they are, and only the weights are kept between steps."""

    def __init__(self, task: Supervised) -> None:
        self.x, self.y = task.train.x.flatten(1).numpy(), task.train.y.numpy()
        self.d = int(task.d)

    def wide(self, size: int, batch: int) -> int:
        """The batch size for all draws: padding is not read."""
        return batch

    def room(self, b: int, sharers: int) -> int:
        """Draws that are worth a thread."""
        return max(1, PORTION // (sharers * b * self.d))

    def run(self, chunk: Chunk, rows: Rows, training: bool) -> None:
        """Train the rows of a chunk, or only compute their losses."""
        index = torch.from_numpy(chunk.rows)
        decay, shift = rows.decay(index), rows.shift(index)
        load("linear").linear(
            self.x, self.y, chunk.samples(), chunk.sizes, chunk.sharers, training,
            index.numpy(), rows.job.numpy(), rows.params.numpy(), rows.rate.numpy(),
            np.ones(len(index), np.float32) if decay is None else 1 + decay.numpy(),
            np.empty((0, self.d), np.float32) if shift is None else shift.numpy(),
            np.empty(0, np.float32) if rows.momentum is None else rows.momentum.numpy(),
            rows.updates.numpy(), rows.losses.numpy(),
        )  # fmt: skip
        rows.losses[index] += rows.penalty[index]

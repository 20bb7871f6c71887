"""How much arithmetic a training step takes, counted by torch."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedstale.core import Local, Task, stream
from fedstale.tasks.checks import training_answer
from fedstale.tasks.supervised import Supervised


class Flops(NamedTuple):
    """Multiplications and additions of one sample, in matrix products and convolutions."""

    gradient: float  # forward and backward
    loss: float  # forward alone


def sample_flops(task: Task) -> Flops | None:
    """The arithmetic of one sample of the largest client; None for a task without a torch model."""
    if not isinstance(task, Supervised):
        return None
    if task.dense:  # the input has no gradient
        products = [2.0 * a * b for a, b in pairwise(task.dense)]
        return Flops(3 * sum(products) - products[0], sum(products))
    from torch.utils.flop_counter import FlopCounterMode  # loads what compiles models, which takes a second

    client = int(np.argmax(task.samples))
    batch = next(iter(task.batches(client, Local(1.0, steps=1, batch=8), stream(0, "flops"))))
    x, y = task.train.take(batch.rows)
    with FlopCounterMode(display=False) as both:
        task.gradient(task.init(0), client, batch)
    with FlopCounterMode(display=False) as forward:
        training_answer(task.module(), x, len(y), str(client))
    return Flops(both.get_total_flops() / len(y), forward.get_total_flops() / len(y))

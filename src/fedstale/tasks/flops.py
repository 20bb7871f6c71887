"""How much arithmetic a training step takes, counted by torch."""

import numpy as np
from torch.utils.flop_counter import FlopCounterMode

from fedstale.core import Local, Task
from fedstale.rng import stream
from fedstale.tasks.supervised import Supervised


def gradient_flops(task: Task) -> float | None:
    """Multiplications and additions of the gradient of one sample, in matrix products and convolutions.

    None for a task without a torch model.
    """
    if not isinstance(task, Supervised):
        return None
    client = int(np.argmax(task.samples))
    batch = next(iter(task.batches(client, Local(1.0, steps=1, batch=8), stream(0, "flops"))))
    size = min(8, int(task.samples[client]))
    with FlopCounterMode(display=False) as counter:
        task.gradient(task.init(0), client, batch)
    return float(counter.get_total_flops()) / size

"""How a client trains: which samples its steps use, and how many threads a step may take. Without torch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np

from fedstale.core import HasDevice, Ids, Local, Task

SMALL = 1 << 16  # parameters below which a second thread gains little, and costs 9 to 20 times on a busy machine


def minibatches(size: int, local: Local, rng: np.random.Generator) -> Ids:
    """(steps, b) samples of a client that holds `size` of them, b = min(local.batch, size).

    One shuffle after the other, cut in equal batches: no sample comes again before all have come, and
    an epoch may end inside a batch.
    """
    b = min(local.batch, size)
    epochs = -(-local.steps * b // size)
    drawn = np.concatenate([rng.permutation(size) for _ in range(epochs)])
    return drawn[: local.steps * b].reshape(local.steps, b)


@contextmanager
def one_thread() -> Iterator[int]:
    """Limit torch to one thread; yields the number of threads that it may use outside."""
    import torch  # slow to load

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def few_threads(task: Task) -> AbstractContextManager[object]:
    """Limit torch to one thread if the task has a small torch model."""
    return one_thread() if isinstance(task, HasDevice) and task.d < SMALL else nullcontext()

"""How a client trains: which samples its steps use, and how many threads a step may take; without torch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from fedstale.core import DrawsByRound, HasDevice, Ids, Local, Task, able

SMALL = 1 << 20  # parameters below which a second thread gains little, and costs 9 to 20 times on a busy machine


def minibatches(size: int, local: Local, rng: np.random.Generator) -> Ids:
    """(steps, b) samples of a client that holds `size` of them, b = min(local.batch, size).

    One shuffle after the other, cut in equal batches: no sample comes again before all have come, and
    an epoch may end inside a batch. With `epochs`, every epoch is a shuffle of its own: it needs `drop_last`
    here, so that all batches are equal; `batches_of` also cuts the smaller last ones.
    """
    drawn, sizes = batches_of(size, local, rng)
    return drawn.reshape(len(sizes), -1)


def batches_of(size: int, local: Local, rng: np.random.Generator) -> tuple[Ids, list[int]]:
    """The samples of all batches of a client, one after the other, and how many of them each batch has."""
    b = min(local.batch, size)
    if local.epochs is None:
        assert local.steps is not None, "the work of a client is settled before it draws"
        shuffles, sizes = -(-local.steps * b // size), [b] * local.steps
        return np.concatenate([rng.permutation(size) for _ in range(shuffles)])[: sum(sizes)], sizes
    full, rest = divmod(size, b)
    once = [b] * full + ([rest] if rest and not local.drop_last else [])
    drawn = [rng.permutation(size)[: sum(once)] for _ in range(local.epochs)]
    return np.concatenate(drawn), once * local.epochs


def drawn(task: Task, client: int, local: Local, rng: np.random.Generator, t: int) -> Iterator[Any]:
    """The batches of a client in round t; the task is told the round if it draws by it."""
    if able(task, DrawsByRound):
        return iter(task.round_batches(t, client, local, rng))
    return iter(task.batches(client, local, rng))


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


def training_thread(task: Task) -> AbstractContextManager[object]:
    """Limit torch to one thread if the task uses it: with more, the bits depend on how many there are."""
    return one_thread() if able(task, HasDevice) else nullcontext()


def few_threads(task: Task) -> AbstractContextManager[object]:
    """Limit torch to one thread for an evaluation if the task has a small torch model."""
    return one_thread() if task.d < SMALL and able(task, HasDevice) else nullcontext()

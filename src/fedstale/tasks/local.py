"""How a client trains: which samples its steps use, how much work that is, and how many threads a step may take.

Without torch.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np

from fedstale.core import CountsSamples, DrawsByRound, HasDevice, Ids, Job, Local, Task, Work
from fedstale.rng import stream

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
    if _draws_by_round(type(task)):
        return iter(cast(DrawsByRound, task).round_batches(t, client, local, rng))
    return iter(task.batches(client, local, rng))


@cache
def _draws_by_round(kind: type) -> bool:
    """Kept by class: to ask a protocol takes as long as a client of a small task."""
    return issubclass(kind, DrawsByRound)


def settled(job: Job, client: int) -> Local:
    """The settings of one client of a job, with the number of steps that its workload gives it."""
    return job.local.alone(client, job.t, stream(job.seed, "work", job.t, client)) if job.local.work else job.local


def steps_of(job: Job, sizes: Ids) -> Ids:
    """(m,) the steps of the clients of a job, which hold so many samples."""
    local = job.local
    if local.epochs is not None:
        return local.epochs * local.per_epoch(sizes)
    if local.work is None:
        return np.full(len(job.clients), local.steps)
    return np.array([settled(job, i).steps or 0 for i in job.clients.tolist()], np.int64)


def work_of(task: Task, job: Job) -> Work | None:
    """How much the clients of a job train; None for epochs of a task that does not count its samples."""
    local, counted = job.local, task if isinstance(task, CountsSamples) else None  # asked once: it is slow
    if local.epochs and counted is None:
        return None
    sizes = np.full(len(job.clients), local.batch) if counted is None else counted.samples[job.clients]
    steps = steps_of(job, sizes)
    whole = local.epochs is not None and not local.drop_last
    samples = (local.epochs or 0) * sizes if whole else steps * np.minimum(sizes, local.batch)
    return Work(steps, samples, local.rates(job.t, steps))


def works_of(task: Task, jobs: Sequence[Job]) -> list[Work | None]:
    """The work of each job; jobs that differ in their clients and parameters only are counted together."""
    alike: dict[tuple[int, int, int], list[int]] = {}
    for k, job in enumerate(jobs):
        alike.setdefault((job.seed, job.t, id(job.local)), []).append(k)
    found: list[Work | None] = [None] * len(jobs)
    for members in alike.values():
        clients = [jobs[k].clients for k in members]
        whole = work_of(task, jobs[members[0]]._replace(clients=np.concatenate(clients)))
        ends = pairwise([0, *accumulate(map(len, clients))])
        for k, end in zip(members, ends, strict=True):
            found[k] = None if whole is None else whole.of(slice(*end))
    return found


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
    return one_thread() if isinstance(task, HasDevice) else nullcontext()


def few_threads(task: Task) -> AbstractContextManager[object]:
    """Limit torch to one thread for an evaluation if the task has a small torch model."""
    return one_thread() if isinstance(task, HasDevice) and task.d < SMALL else nullcontext()

"""The obvious loop, one client after the other: the reference that every faster engine must match."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from fedstale.core import Array, HasSlots, Job, Local, Reply, Task, part, require, runs_loops
from fedstale.rng import stream
from fedstale.tasks.local import drawn, few_threads, settled, work_of

if TYPE_CHECKING:
    from fedstale.engines.optimizers import Optimizer


def cut(task: Task, jobs: Sequence[Job], updates: Array, losses: Array) -> list[Reply]:
    """The reply to each job, from the rows (R, d) and (R,) of all clients of all jobs, in their order."""
    stops = np.cumsum([len(job.clients) for job in jobs])[:-1]
    rows = zip(jobs, np.split(updates, stops), np.split(losses, stops), strict=True)
    return [Reply(u, f, work_of(task, job)) for job, u, f in rows]


def answer(task: Task, job: Job, training: bool) -> Reply:
    """Serial's reply to a job; if it is not to train, only the losses, and updates without coordinates."""
    engine = Serial(task, job.local)
    if training:
        return engine.train([job])[0]
    return Reply(np.empty((len(job.clients), 0), np.float32), engine.losses(job))


@part
class Serial:
    """The local steps of one client after the other, on the batches of each client's own named stream.

    Plain SGD is computed in numpy; every other setting of `Local` by an optimizer of torch, fresh in every round.
    """

    task: Task
    local: Local

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        """The replies to all jobs, in their order; small torch models are trained with one thread."""
        with few_threads(self.task):
            return [self._train(job) for job in jobs]

    def _train(self, job: Job) -> Reply:
        m, local = len(job.clients), job.local
        updates, losses = np.empty((m, self.task.d), np.float32), np.empty(m, np.float32)
        lr, prox = np.float32(local.rate(job.t)), np.float32(local.prox)
        for k, client in enumerate(job.clients.tolist()):
            if local.train is not None:
                updates[k], losses[k] = self._own(job, client)
                continue
            w = job.params.copy()
            optimizer = None if local.plain else self._optimizer(w, job)
            for step, batch in enumerate(self._batches(job, client)):
                loss, gradient = self.task.gradient(w, client, batch)
                if step == 0:
                    losses[k] = loss
                if prox:
                    gradient = gradient + prox * (w - job.params)
                if job.drift is not None:
                    gradient = gradient + job.drift[k]
                if optimizer:
                    optimizer.step(gradient)
                else:
                    w -= lr * gradient
            updates[k] = w - job.params
        return Reply(updates, losses, work_of(self.task, job))

    def _own(self, job: Job, client: int) -> tuple[Array, float]:
        """Update and loss of a client that is trained by a loop of the user's own."""
        from fedstale.tasks.loops import Context  # torch is slow to load

        local = settled(job, client)
        w, loss = runs_loops(self.task).run_loop(job.params, client, local, Context.of(job, client, local))
        if loss is None:
            loss = float(self.losses(job._replace(clients=np.array([client])))[0])
        return w - job.params, loss

    def _optimizer(self, w: Array, job: Job) -> "Optimizer":
        from fedstale.engines.optimizers import Optimizer  # torch is slow to load

        return Optimizer(w, self.task.slots if isinstance(self.task, HasSlots) else (), job.local, job.t)

    def losses(self, job: Job) -> Array:
        """(m,) the loss of each client's first batch of this round, without training."""
        with few_threads(self.task):
            batches = ((i, next(self._batches(job, i))) for i in job.clients.tolist())
            return np.array([self.task.gradient(job.params, i, batch)[0] for i, batch in batches], np.float32)

    def _batches(self, job: Job, client: int) -> Iterator[Any]:
        """The client's batches of this round, at least one."""
        batches = drawn(self.task, client, settled(job, client), stream(job.seed, "local", job.t, client), job.t)
        first = list(islice(batches, 1))
        require(len(first) == 1, f"a client that trains must have a batch, got none for client {client}")
        return chain(first, batches)

"""The obvious loop, one client after the other: the reference that every faster engine must match."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from fedstale.core import Array, Job, Local, Reply, Task, part, require
from fedstale.rng import stream
from fedstale.tasks.local import few_threads


def cut(jobs: Sequence[Job], updates: Array, losses: Array) -> list[Reply]:
    """The reply to each job, from the rows (R, d) and (R,) of all clients of all jobs, in their order."""
    stops = np.cumsum([len(job.clients) for job in jobs])[:-1]
    return [Reply(u, f) for u, f in zip(np.split(updates, stops), np.split(losses, stops), strict=True)]


def answer(task: Task, job: Job, training: bool) -> Reply:
    """Serial's reply to a job; if it is not to train, only the losses, and updates without coordinates."""
    engine = Serial(task, job.local)
    if training:
        return engine.train([job])[0]
    return Reply(np.empty((len(job.clients), 0), np.float32), engine.losses(job))


@part
class Serial:
    """K steps of SGD per client on the batches of its own named stream."""

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
            w = job.params.copy()
            for step, batch in enumerate(self._batches(job, client)):
                loss, gradient = self.task.gradient(w, client, batch)
                if step == 0:
                    losses[k] = loss
                if prox:
                    gradient = gradient + prox * (w - job.params)
                if job.drift is not None:
                    gradient = gradient + job.drift[k]
                w -= lr * gradient
            updates[k] = w - job.params
        return Reply(updates, losses)

    def losses(self, job: Job) -> Array:
        """(m,) the loss of each client's first batch of this round, without training."""
        with few_threads(self.task):
            batches = ((i, next(self._batches(job, i))) for i in job.clients.tolist())
            return np.array([self.task.gradient(job.params, i, batch)[0] for i, batch in batches], np.float32)

    def _batches(self, job: Job, client: int) -> Iterator[Any]:
        """The client's batches of this round, at least one."""
        batches = iter(self.task.batches(client, job.local, stream(job.seed, "local", job.t, client)))
        first = list(islice(batches, 1))
        require(len(first) == 1, f"a client that trains must have a batch, got none for client {client}")
        return chain(first, batches)

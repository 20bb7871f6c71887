"""The obvious loop, one client after the other: the reference that every faster engine must match."""

from collections.abc import Sequence

import numpy as np

from fedstale.core import Array, Job, Local, Reply, Task, part
from fedstale.rng import stream


@part
class Serial:
    """K steps of SGD per client on the batches of its own named stream."""

    task: Task
    local: Local

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        return [self._train(job) for job in jobs]

    def _train(self, job: Job) -> Reply:
        m, local = len(job.clients), job.local
        updates, losses = np.empty((m, self.task.d), np.float32), np.empty(m, np.float32)
        lr, prox = np.float32(local.rate(job.t)), np.float32(local.prox)
        for k, client in enumerate(job.clients.tolist()):
            w = job.params.copy()
            rng = stream(job.seed, "local", job.t, client)
            for step, batch in enumerate(self.task.batches(client, local, rng)):
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
        losses = np.empty(len(job.clients), np.float32)
        for k, client in enumerate(job.clients.tolist()):
            batch = next(iter(self.task.batches(client, job.local, stream(job.seed, "local", job.t, client))))
            losses[k] = self.task.gradient(job.params, client, batch)[0]
        return losses

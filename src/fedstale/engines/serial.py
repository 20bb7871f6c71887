"""The obvious loop, one client after the other: the reference that every faster engine must match."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from fedstale.core import Array, HasSlots, Job, Local, Reply, Task, buffered, part, require, runs_loops
from fedstale.rng import stream
from fedstale.tasks.local import drawn, settled, training_thread, work_of

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
        """The replies to all jobs, in their order; torch models are trained with one thread."""
        with training_thread(self.task):
            return [self._train(job) for job in jobs]

    def _train(self, job: Job) -> Reply:
        m, keeper = len(job.clients), buffered(self.task)
        updates, losses = np.empty((m, self.task.d), np.float32), np.empty(m, np.float32)
        buffers = np.empty((m, len(keeper.initial_buffers))) if keeper else None
        for k, client in enumerate(job.clients.tolist()):
            self._begin(job)
            w, loss = self._steps(job, k, client) if job.local.train is None else self._own(job, client)
            updates[k] = w - job.params
            if keeper and buffers is not None:
                buffers[k] = keeper.read_buffers()
            losses[k] = self._loss(job, client) if loss is None else loss
        return Reply(updates, losses, work_of(self.task, job), buffers)

    def _begin(self, job: Job) -> None:
        """Give the model the buffers that are sent, if training changes any."""
        if keeper := buffered(self.task):
            keeper.load_buffers(keeper.initial_buffers if job.buffers is None else job.buffers)

    def _steps(self, job: Job, k: int, client: int) -> tuple[Array, float]:
        """Parameters (d,) after the last batch, and loss of the first, of the k-th client of a job."""
        local, w, first = job.local, job.params.copy(), float("nan")
        lr, prox = np.float32(local.rate(job.t)), np.float32(local.prox)
        optimizer = None if local.plain else self._optimizer(w, job)
        for step, batch in enumerate(self._batches(job, client)):
            loss, gradient = self.task.gradient(w, client, batch)
            if step == 0:
                first = loss
            if prox:
                gradient = gradient + prox * (w - job.params)
            if job.drift is not None:
                gradient = gradient + job.drift[k]
            if optimizer:
                optimizer.step(gradient)
            else:
                w -= lr * gradient
        return w, first

    def _own(self, job: Job, client: int) -> tuple[Array, float | None]:
        """Parameters (d,) after a training loop of the user's own, and the loss that it returned, if it did."""
        from fedstale.tasks.loops import Context  # torch is slow to load

        local = settled(job, client)
        return runs_loops(self.task).run_loop(job.params, client, local, Context.of(job, client, local))

    def _optimizer(self, w: Array, job: Job) -> "Optimizer":
        from fedstale.engines.optimizers import Optimizer  # torch is slow to load

        return Optimizer(w, self.task.slots if isinstance(self.task, HasSlots) else (), job.local, job.t)

    def losses(self, job: Job) -> Array:
        """(m,) the loss of each client's first batch of this round, without training."""
        with training_thread(self.task):
            return np.array([self._loss(job, i) for i in job.clients.tolist()], np.float32)

    def _loss(self, job: Job, client: int) -> float:
        self._begin(job)
        return self.task.gradient(job.params, client, next(self._batches(job, client)))[0]

    def _batches(self, job: Job, client: int) -> Iterator[Any]:
        """The client's batches of this round, at least one."""
        batches = drawn(self.task, client, settled(job, client), stream(job.seed, "local", job.t, client), job.t)
        first = list(islice(batches, 1))
        require(len(first) == 1, f"a client that trains must have a batch, got none for client {client}")
        return chain(first, batches)

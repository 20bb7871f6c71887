"""The obvious loop, one client after the other: the reference that every faster engine must match."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedstale.core import CountsSamples, on_host, place_of
from fedstale.core.abilities import HasBuffers, HasDevice, HasSlots, KeepsOwn, buffered, keeps_own, runs_loops
from fedstale.core.local import Local, Work
from fedstale.core.parts import able, part, require
from fedstale.core.protocols import Task
from fedstale.core.records import Array, Floats, Ids, Job, Reply, State
from fedstale.core.rng import stream
from fedstale.tasks.local import drawn, few_threads, training_thread

if TYPE_CHECKING:
    from fedstale.engines.optimizers import Optimizer


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
    local, counted = job.local, task if able(task, CountsSamples) else None
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


def cut(
    task: Task, jobs: Sequence[Job], updates: Array, losses: Array, buffers: Floats | None = None
) -> list[Reply]:
    """The reply to each job, from the rows (R, d), (R,) and (R, b) of all clients of all jobs, in their order."""
    ends = pairwise(accumulate((len(job.clients) for job in jobs), initial=0))
    pairs = zip(works_of(task, jobs), (slice(*end) for end in ends), strict=True)
    return [Reply(updates[at], losses[at], work, None if buffers is None else buffers[at]) for work, at in pairs]


def answer(task: Task, job: Job, training: bool) -> Reply:
    """Serial's reply to a job; if it is not to train, only the losses, and updates without coordinates.

    For a process of its own: a large model may use all threads that torch has there; in an engine it has one.
    """
    engine = Serial(task, job.local)
    with few_threads(task):
        if training:
            return engine._train(job)
        return Reply(np.empty((len(job.clients), 0), np.float32), engine._losses(job))


def _padded(shared: Array, whole: Array) -> Array:
    """A vector (d,) with zeros behind it for the parameters that are a client's own."""
    return shared if len(shared) == len(whole) else np.pad(shared, (0, len(whole) - len(shared)))


@part
class Serial:
    """The local steps of one client after the other, on the batches of each client's own named stream.

    All settings of `Local` but plain SGD are computed by an optimizer of torch, fresh in every round.
    A model of torch stays where it computes: on a GPU it travels once each way for a client and a round.
    """

    task: Task
    local: Local

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        """The replies to all jobs, in their order; torch models are trained with one thread."""
        # a run that diverges ends with a sentence, without warnings of numpy
        with training_thread(self.task), np.errstate(over="ignore", invalid="ignore"):
            return [self._train(job) for job in jobs]

    @cached_property
    def _buffered(self) -> HasBuffers | None:
        """The task, if its model has buffers; asked once, because it takes as long as a step of a small model."""
        return buffered(self.task)

    @cached_property
    def _keeps_own(self) -> KeepsOwn | None:
        return keeps_own(self.task)

    @cached_property
    def _on_device(self) -> Callable[..., tuple[Array, float]] | None:
        """The steps of a client whose model stays on its device, if it is one of torch."""
        if not isinstance(self.task, HasDevice):
            return None
        from fedstale.engines import device  # torch is slow to load

        return device.steps_of(self.task)

    def _train(self, job: Job) -> Reply:
        m, keeper, place = len(job.clients), self._buffered, place_of(self.task)
        updates, losses = np.empty((m, self.task.d), np.float32), np.empty(m, np.float32)
        if place is not None:  # all stay there, but the losses, which come back together
            ok = self._on_device is not None and job.local.train is None
            require(ok, f'aggregate = "device" needs steps of ours, got a gradient or a loop of {self.task}')
            job = job._replace(params=place.restored(job.params))
            updates, losses = place.zeros(m, self.task.d), place.zeros(m)
        buffers = np.empty((m, len(keeper.initial_buffers))) if keeper else None
        own, states, before = self._keeps_own, dict[int, State](), job.states or {}
        lr, prox = np.float32(job.local.rate(job.t)), np.float32(job.local.prox)
        for k, client in enumerate(job.clients.tolist()):
            kept: dict[str, Any] = {}
            w = self._begin(job, client)
            w, loss = (
                self._steps(job, k, w, lr, prox) if job.local.train is None else self._own(job, client, w, kept)
            )
            updates[k] = (w[: self.task.d] if own else w) - job.params
            if keeper and buffers is not None:
                buffers[k] = keeper.read_buffers()
            if own:
                kept |= own.leave(w)
            if kept or client in before:
                states[client] = kept
            losses[k] = self._loss(job, client) if loss is None else loss
        losses = losses if place is None else on_host(losses)
        return Reply(updates, losses, work_of(self.task, job), buffers, states or None)

    def _begin(self, job: Job, client: int) -> Array:
        """A client's parameters, with its own behind those that are sent; gives the model its buffers, if any."""
        if keeper := self._buffered:
            keeper.load_buffers(keeper.initial_buffers if job.buffers is None else job.buffers)
        own = self._keeps_own
        return own.enter(job.params, (job.states or {}).get(client)) if own else job.params.copy()

    def _steps(self, job: Job, k: int, w: Array, lr: np.float32, prox: np.float32) -> tuple[Array, float]:
        """Parameters after the last batch, and loss of the first, of the k-th client of a job, from `w`."""
        local, client, first = job.local, int(job.clients[k]), float("nan")
        if self._on_device:
            return self._on_device(job, k, w, self._batches(job, client))
        optimizer = None if local.plain else self._optimizer(w, job)
        for step, batch in enumerate(self._batches(job, client)):
            loss, gradient = self.task.gradient(w, client, batch)
            if step == 0:
                first = loss
            if prox:
                gradient = gradient + _padded(prox * (w[: self.task.d] - job.params), w)
            if job.drift is not None:
                gradient = gradient + _padded(job.drift[k], w)
            if optimizer:
                optimizer.step(gradient)
            else:
                w -= lr * gradient
        return w, first

    def _own(self, job: Job, client: int, w: Array, kept: dict[str, Any]) -> tuple[Array, float | None]:
        """Parameters after a training loop of the user's own, from `w`, and the loss that it returned, if it did.

        What the loop has put into its state goes to `kept`.
        """
        from fedstale.tasks.loops import Context, stored  # torch is slow to load

        local = settled(job, client)
        context = Context.of(job, client, local)
        trained = runs_loops(self.task).run_loop(w, client, local, context)
        if context.state:
            kept["loop"] = stored(context.state)
        return trained

    def _optimizer(self, w: Array, job: Job) -> "Optimizer":
        from fedstale.engines.optimizers import Optimizer  # torch is slow to load

        return Optimizer(w, self.task.slots if isinstance(self.task, HasSlots) else (), job.local, job.t)

    def losses(self, job: Job) -> Array:
        """(m,) the loss of each client's first batch of this round, without training."""
        with training_thread(self.task):
            return self._losses(job)

    def _losses(self, job: Job) -> Array:
        return np.array([self._loss(job, i) for i in job.clients.tolist()], np.float32)

    def _loss(self, job: Job, client: int) -> float:
        return self.task.gradient(self._begin(job, client), client, next(self._batches(job, client)))[0]

    def _batches(self, job: Job, client: int) -> Iterator[Any]:
        """The client's batches of this round, at least one."""
        batches = drawn(self.task, client, settled(job, client), stream(job.seed, "local", job.t, client), job.t)
        first = list(islice(batches, 1))
        require(len(first) == 1, f"a client that trains must have a batch, got none for client {client}")
        return chain(first, batches)

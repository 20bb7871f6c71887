"""All clients of all jobs of a quadratic task at once, without torch."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np

from fedstale.core import Array, Floats, Ids, Job, Local, Reply, Work, part
from fedstale.core.rng import stream
from fedstale.engines.serial import Serial
from fedstale.tasks.quadratic import Quadratic


@part
class BatchedQuadratic:
    """SGD of all rows (a client of a job) side by side; good for many clients or many runs.

    Updates are those of Serial bit for bit where curvatures are diagonal; otherwise, and the losses,
    within 1e-6 of the largest number of a reply.
    """

    task: Quadratic
    local: Local
    width: ClassVar[int] = 64

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        """The replies to all jobs, in their order; what is not plain SGD with equal steps is left to Serial."""
        replies: dict[int, Reply] = {}
        counts = [(job.local.steps or 0) if job.local.plain else 0 for job in jobs]
        for steps in sorted({*counts}):
            alike = {k: job for k, job in enumerate(jobs) if counts[k] == steps}
            some = list(alike.values())
            done = self._train(some, steps) if steps else Serial(self.task, self.local).train(some)
            replies |= zip(alike, done, strict=True)
        return [replies[k] for k in range(len(jobs))]

    def losses(self, job: Job) -> Array:
        gap = job.params - self.task.centers[job.clients]
        return _half(gap, self._pull(job.clients, gap))

    @np.errstate(over="ignore", invalid="ignore")  # a run that diverges ends with a sentence, without warnings
    def _train(self, jobs: Sequence[Job], steps: int) -> list[Reply]:
        counts = [len(job.clients) for job in jobs]

        def each(values: Sequence[float]) -> Array:
            return np.repeat(np.array(values, np.float32), counts)[:, None]

        clients = np.concatenate([job.clients for job in jobs])
        sent = np.repeat(np.stack([job.params for job in jobs]), counts, axis=0)  # (R, d)
        rates = [job.local.rate(job.t) for job in jobs]
        rate, prox = each(rates), each([job.local.prox for job in jobs])
        drift = np.concatenate([_drift(job, self.task.d) for job in jobs])
        w, centers, losses = sent.copy(), self.task.centers[clients], np.empty(0, np.float32)
        for step, noise in enumerate(self._noise(jobs, steps)):
            gap = w - centers
            pull = self._pull(clients, gap)
            losses = losses if step else _half(gap, pull)
            gradient = (pull + noise).astype(np.float32) + prox * (w - sent) + drift
            w -= rate * gradient
        samples, sums = [steps * job.local.batch for job in jobs], [steps * r for r in rates]
        work = Work(np.full(len(clients), steps), np.repeat(samples, counts), np.repeat(sums, counts))
        updates, ends = w - sent, pairwise(accumulate(counts, initial=0))
        return [Reply(updates[a:b], losses[a:b], work.of(slice(a, b))) for a, b in ends]

    def _noise(self, jobs: Sequence[Job], steps: int) -> Floats:
        """(steps, R, d); jobs of one seed share it."""
        d, drawn = self.task.d, {}
        rows = [(job.seed, job.t, client) for job in jobs for client in job.clients.tolist()]
        noise = np.zeros((steps, len(rows), d if self.task.noise else 1))
        for k, name in enumerate(rows if self.task.noise else []):
            seed, t, client = name
            if name not in drawn:
                drawn[name] = stream(seed, "local", t, client).standard_normal((steps, d))
            np.multiply(self.task.noise, drawn[name], out=noise[:, k])
        return noise

    def _pull(self, clients: Ids, gap: Floats) -> Floats:
        A = self.task.curvature[clients]
        pull: Floats = A * gap if A.ndim == 2 else (A @ gap[:, :, None])[:, :, 0]
        return pull


def _half(gap: Floats, pull: Floats) -> Array:
    return np.asarray(0.5 * (gap * pull).sum(axis=1), np.float32)


def _drift(job: Job, d: int) -> Array:
    return np.zeros((len(job.clients), d), np.float32) if job.drift is None else job.drift

"""The rows of a batch of jobs as tensors, and which advance together: those with batches of one padded size."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedstale.core import Array, Ids, Job, Local
from fedstale.core.rng import key, stream
from fedstale.engines.kernels import load
from fedstale.engines.serial import steps_of
from fedstale.tasks.local import minibatches
from fedstale.tasks.supervised import Supervised

Key = tuple[Any, ...]  # seed, t, batch, steps, epochs, workload: jobs with the same draw the same samples
Room = Callable[[int, int], int]  # b, J -> draws that a chunk may hold
Wide = Callable[[int, int], int]  # samples of a draw, batch -> b, the padded batch size
WORTH = 8  # a chunk that fills less than 1/8 of its room is not divided between two threads


class Draw(NamedTuple):
    """The samples of one client in one round, and the J rows (a job and its place) that train on them."""

    seed: int
    t: int
    local: Local
    client: int
    size: int  # min(batch, samples of the client)
    wide: int  # b, the padded batch size
    steps: int
    rows: Ids  # (J,) ascending, counted over the clients of all jobs


class Chunk(NamedTuple):
    """G draws of b samples or fewer for J rows each; row g·J + j trains on draw g."""

    draws: Sequence[Draw]  # G
    offsets: Ids  # (n + 1,) of the training split

    @property
    def rows(self) -> Ids:
        """(G·J,) all rows, draw by draw."""
        return np.concatenate([draw.rows for draw in self.draws])

    @property
    def sharers(self) -> int:
        """J, the rows of each draw."""
        return len(self.draws[0].rows)

    @property
    def sizes(self) -> Ids:
        """(G,) samples of each draw, without padding."""
        return np.array([draw.size for draw in self.draws])

    def samples(self) -> Ids:
        """(steps, G, b) rows of the training split; a draw is padded with a sample of the same client."""
        clients, like = np.array([draw.client for draw in self.draws]), self.draws[0]
        samples = np.zeros((like.steps, len(clients), like.wide), np.int64)
        first, held = self.offsets[clients], self.offsets[clients + 1] - self.offsets[clients]
        if (fused := load("linear")) and like.local.epochs is None:
            keys = b"".join(key(draw.seed, "local", draw.t, draw.client) for draw in self.draws)
            fused.draw(np.frombuffer(keys, np.uint64).reshape(-1, 2), held, self.sizes, samples)
        else:
            for g, (seed, t, local, client, size, _, steps, _) in enumerate(self.draws):
                own = local if local.work is None else replace(local, steps=steps, work=None)
                samples[:, g, :size] = minibatches(int(held[g]), own, stream(seed, "local", t, client))
        samples += first[:, None]
        return samples

    def counts(self) -> Array:
        """(G, b) the weight of each sample: 1/size, and 0 for padding."""
        sizes = self.sizes[:, None]
        return np.asarray((np.arange(self.draws[0].wide) < sizes) / sizes, np.float32)


def chunks(jobs: Sequence[Job], offsets: Ids, room: Room, wide: Wide) -> Iterator[Chunk]:
    """Divide the rows of all jobs into chunks of at most `room` draws, each with one padded batch size.

    Chunks are about equal and come in pairs, for threads to share, unless there is too little for two. They
    do not depend on the number of threads.
    """
    for (_, _, sharers, b), draws in _grouped(jobs, np.diff(offsets), wide).items():
        m, most = len(draws), room(b, sharers)
        parts = 1 if WORTH * m < most else min(m, 2 * -(-m // (2 * most)))
        for begin, end in pairwise(m * k // parts for k in range(parts + 1)):
            yield Chunk(draws[begin:end], offsets)


def filled(size: int, batch: int) -> int:
    """The padded batch size: the least of batch, ¾ batch, ¾ of that, … that holds `size`, and at least 2.

    It depends on nothing else in the round, and one sample alone would be a matrix times a vector, which
    libraries sum in an order that depends on how many of them there are.
    """
    wide = batch
    while size <= 3 * wide // 4:
        wide = 3 * wide // 4
    return max(wide, 2)


def _grouped(jobs: Sequence[Job], sizes: Ids, wide: Wide) -> dict[tuple[bool, int, int, int], list[Draw]]:
    """The draws of all jobs by (whether steps are counted in epochs, steps, J, b)."""
    first = np.cumsum([0, *(len(job.clients) for job in jobs)])
    same: dict[Key, list[int]] = defaultdict(list)
    for k, job in enumerate(jobs):
        if len(job.clients):
            local = job.local
            same[job.seed, job.t, local.batch, local.steps, local.epochs, local.work].append(k)
    groups: dict[tuple[bool, int, int, int], list[Draw]] = defaultdict(list)
    for members in same.values():
        clients = np.concatenate([jobs[k].clients for k in members])
        rows = np.concatenate([np.arange(first[k], first[k + 1]) for k in members])
        rows = rows[np.argsort(clients, kind="stable")]
        who, begin = np.unique(np.sort(clients), return_index=True)
        job = jobs[members[0]]._replace(clients=who)
        local, steps = job.local, steps_of(job, sizes[who])
        drawn, cuts = np.minimum(local.batch, sizes[who]).tolist(), [*begin.tolist(), len(rows)]
        for client, size, k, cut in zip(who.tolist(), drawn, steps.tolist(), pairwise(cuts), strict=True):
            group, b = rows[slice(*cut)], wide(size, local.batch)
            draw = Draw(job.seed, job.t, local, client, size, b, k, group)
            groups[local.epochs is not None, k, len(group), b].append(draw)
    return groups


def portion(device: torch.device, cached: int) -> int:
    """Bytes of a chunk: `cached` where a CPU's caches are the limit, a sixteenth of the memory of a GPU.

    What else uses the GPU does not count, so that the same chunks, and bits, come out in every run.
    """
    if device.type != "cuda":
        return cached
    return max(cached, torch.cuda.get_device_properties(device).total_memory // 16)


class Rows(NamedTuple):
    """R rows, those of the first job first, on the task's device."""

    params: Tensor  # (jobs, d) what was sent
    penalty: Tensor  # (R,) ridge/2 ‖params‖²
    job: Tensor  # (R,) number of the row's job
    rate: Tensor  # (R,) learning rate
    ridge: float
    prox: Tensor | None  # (R,)
    weight_decay: Tensor | None  # (R,)
    momentum: Tensor | None  # (R,)
    drift: Tensor | None  # (R, d)
    updates: Tensor  # (R, d) local minus sent, to be written
    losses: Tensor  # (R,) likewise

    @classmethod
    def of(cls, jobs: Sequence[Job], task: Supervised) -> "Rows":
        """The inputs of these jobs, and room for their outputs."""
        counts, device = [len(job.clients) for job in jobs], task.device

        def each(values: list[float]) -> Tensor:
            return torch.from_numpy(np.repeat(np.array(values, np.float32), counts)).to(device)

        def setting(name: str) -> Tensor | None:
            values = [getattr(job.local, name) for job in jobs]
            return each(values) if any(values) else None

        params = np.stack([job.params for job in jobs])
        drifts = [job.drift for job in jobs]
        return cls(
            params=torch.from_numpy(params).to(device),
            penalty=each([task.ridge / 2 * float(p @ p) if task.ridge else 0.0 for p in params]),
            job=torch.from_numpy(np.repeat(np.arange(len(jobs)), counts)).to(device),
            rate=each([job.local.rate(job.t) for job in jobs]),
            ridge=task.ridge,
            prox=setting("prox"),
            weight_decay=setting("weight_decay"),
            momentum=setting("momentum"),
            drift=None if all(drift is None for drift in drifts) else _stacked(drifts, counts, task),
            updates=torch.empty(sum(counts), task.d, device=device),
            losses=torch.empty(sum(counts), device=device),
        )

    def decay(self, index: Tensor) -> Tensor | None:
        """(r,) minus the rate times what multiplies w in the gradient: ridge + prox + weight decay."""
        pull: Tensor | float = self.ridge
        for more in (self.prox, self.weight_decay):
            pull = pull if more is None else pull + more[index]
        return -self.rate[index] * pull if isinstance(pull, Tensor) or pull else None

    def shift(self, index: Tensor) -> Tensor | None:
        """(r, d) what every step adds besides the gradient: rate · (prox · sent - drift)."""
        shift = None
        if self.prox is not None:
            shift = self.prox[index, None] * self.params[self.job[index]]
        if self.drift is not None:
            drift = self.drift[index]
            shift = drift.neg_() if shift is None else shift.sub_(drift)
        return None if shift is None else shift.mul_(self.rate[index, None])


def _stacked(drifts: Sequence[np.ndarray | None], counts: list[int], task: Supervised) -> Tensor:
    whole = [np.zeros((m, task.d), np.float32) if x is None else x for x, m in zip(drifts, counts, strict=True)]
    return torch.from_numpy(np.concatenate(whole)).to(task.device)

"""Who advances together: clients that draw the same number of samples, used by the same number of jobs."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedstale.core import Array, Ids, Job, Local
from fedstale.rng import stream
from fedstale.tasks.split import minibatches

Key = tuple[int, int, int, int]  # seed, t, batch, steps: jobs with the same draw the same samples
Room = Callable[[int, int], int]  # b, J -> sample sets that a chunk may hold
WORTH = 8  # a chunk that fills less than this part of its room is not worth two


class Draw(NamedTuple):
    """The samples of one client in one round, and the J rows (a job and its place) that train on them."""

    seed: int
    t: int
    local: Local
    client: int
    size: int  # b = min(batch, samples of the client)
    rows: Ids  # (J,) ascending, counted over the clients of all jobs


class Chunk(NamedTuple):
    """G draws of at most b samples for J rows each; row g·J + j trains on draw g."""

    samples: Ids  # (steps, G, b) rows of the training split; filled up with a sample of the same client
    sizes: Ids  # (G,)
    rows: Ids  # (G·J,)
    sharers: int  # J

    def counts(self) -> Array:
        """(G, b) 1/size for the samples of a draw, 0 for what it was filled up with."""
        b = self.samples.shape[2]
        return ((np.arange(b) < self.sizes[:, None]) / self.sizes[:, None]).astype(np.float32)


def chunks(jobs: Sequence[Job], offsets: Ids, room: Room, slack: float) -> Iterator[Chunk]:
    """All rows of all jobs, in chunks of `room` where at most the share `slack` is filled up.

    Chunks are about equal and come in pairs, for threads to share, unless there is too little for two;
    how many threads there are does not change them.
    """
    for (steps, sharers), draws in _alike(jobs, np.diff(offsets)).items():
        draws.sort(key=lambda draw: -draw.size)  # stable: the order is the same in every run
        for similar in _similar(draws, slack):
            m, most = len(similar), room(similar[0].size, sharers)
            parts = 1 if WORTH * m < most else min(m, 2 * -(-m // (2 * most)))
            for begin, end in pairwise(m * k // parts for k in range(parts + 1)):
                yield _chunk(similar[begin:end], steps, sharers, offsets)


def _similar(draws: list[Draw], slack: float) -> Iterator[list[Draw]]:
    """Cut where a draw is smaller than the first by more than the slack."""
    begin = 0
    for end in range(1, len(draws) + 1):
        if end == len(draws) or draws[end].size < (1 - slack) * draws[begin].size:
            yield draws[begin:end]
            begin = end


def _alike(jobs: Sequence[Job], sizes: Ids) -> dict[tuple[int, int], list[Draw]]:
    """Draws by (steps, J)."""
    first = np.cumsum([0, *(len(job.clients) for job in jobs)])
    same: dict[Key, list[int]] = defaultdict(list)
    for k, job in enumerate(jobs):
        if len(job.clients):
            same[job.seed, job.t, job.local.batch, job.local.steps].append(k)
    alike: dict[tuple[int, int], list[Draw]] = defaultdict(list)
    for key, members in same.items():
        clients = np.concatenate([jobs[k].clients for k in members])
        rows = np.concatenate([np.arange(first[k], first[k + 1]) for k in members])
        rows = rows[np.argsort(clients, kind="stable")]
        who, begin = np.unique(np.sort(clients), return_index=True)
        local = jobs[members[0]].local
        b, cuts = np.minimum(local.batch, sizes[who]).tolist(), [*begin.tolist(), len(rows)]
        for client, size, cut in zip(who.tolist(), b, pairwise(cuts), strict=True):
            group = rows[slice(*cut)]
            alike[local.steps, len(group)].append(Draw(*key[:2], local, client, size, group))
    return alike


def _chunk(draws: Sequence[Draw], steps: int, sharers: int, offsets: Ids) -> Chunk:
    starts, sizes = offsets[[draw.client for draw in draws]], np.array([draw.size for draw in draws])
    samples = np.zeros((steps, len(draws), draws[0].size), np.int64)
    for g, (seed, t, local, client, size, _) in enumerate(draws):
        held = int(offsets[client + 1] - offsets[client])
        samples[:, g, :size] = minibatches(held, local, stream(seed, "local", t, client))
    samples += starts[:, None]
    return Chunk(samples, sizes, np.concatenate([draw.rows for draw in draws]), sharers)

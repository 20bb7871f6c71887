"""Jobs that ask for more than engines know, made of jobs that every engine knows."""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from fedstale.core.local import Local, Work
from fedstale.core.parts import require
from fedstale.core.protocols import Engine
from fedstale.core.records import Array, Job, Reply

__all__ = ["require_last_gradient", "train"]


def train(engine: Engine, jobs: Sequence[Job]) -> list[Reply]:
    """The replies of an engine to all jobs.

    A job with `starts` is one job per client. A job that asks for the last gradient is also trained one step less:
    the difference is the last step. Jobs with neither are given to the engine as they are.
    """
    if all(job.starts is None and not job.last_gradient for job in jobs):
        return engine.train(jobs)
    replies = iter(engine.train([part for job in jobs for part in _parts(job)]))
    return [_joined(job, replies) for job in jobs]


def _parts(job: Job) -> list[Job]:
    """The jobs of which an engine's replies make the reply to this one."""
    plain = job._replace(starts=None, last_gradient=False)
    parts = [plain]
    if job.starts is not None and len(job.clients):
        parts = [plain.of(slice(k, k + 1))._replace(params=start) for k, start in enumerate(job.starts)]
    if not job.last_gradient:
        return parts
    require_last_gradient(job.local, job.t)
    shorter = dataclasses.replace(job.local, steps=(job.local.steps or 0) - 1) if job.local.steps != 1 else None
    return parts + [part._replace(local=shorter) for part in parts if shorter]


def require_last_gradient(local: Local, t: int = 0) -> None:
    """Refuse local work whose last step is no gradient times the rate."""
    ok = local.plain and local.steps is not None and local.rate(t) > 0 and not local.prox
    require(ok, f"the last gradient needs plain SGD at a fixed number of steps and a rate above 0, got {local}")


def _joined(job: Job, replies: Iterator[Reply]) -> Reply:
    """The reply to a job, from those to its parts."""
    count = 1 if job.starts is None else max(1, len(job.clients))
    reply = _merged(list(islice(replies, count)))
    if not job.last_gradient:
        return reply
    before = _merged(list(islice(replies, count))).updates if job.local.steps != 1 else np.float32(0)
    gradients: Array = (before - reply.updates) / np.float32(job.local.rate(job.t))
    return reply._replace(gradients=gradients if job.drift is None else gradients - job.drift)


def _merged(replies: Sequence[Reply]) -> Reply:
    """One reply with the rows of all."""
    if len(replies) == 1:
        return replies[0]
    first = replies[0]
    works = [reply.work for reply in replies if reply.work]
    buffers = [reply.buffers for reply in replies if reply.buffers is not None]
    states = {client: state for reply in replies for client, state in (reply.states or {}).items()}
    return first._replace(
        updates=np.concatenate([reply.updates for reply in replies]),
        losses=np.concatenate([reply.losses for reply in replies]),
        work=Work(*map(np.concatenate, zip(*works, strict=True))) if works else None,
        buffers=np.concatenate(buffers) if buffers else None,
        states=states or None,
    )

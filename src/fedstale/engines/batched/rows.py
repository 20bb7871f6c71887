"""Inputs and outputs of a batch of jobs as tensors, one row per client of a job."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedstale.core import Job
from fedstale.tasks.supervised import Supervised


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

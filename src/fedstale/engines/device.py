"""The local steps of a client on a GPU: the model goes there once and comes back once, all else stays there."""

from collections.abc import Callable, Iterable
from functools import partial
from types import MethodType

import torch

from fedstale.core import Array, Job, Task
from fedstale.engines.optimizers import Optimizer
from fedstale.tasks.supervised import Batch, Supervised

REPLACED = ("gradient", "backward")  # methods of a task that `steps` does without


def steps_of(task: Task) -> Callable[..., tuple[Array, float]] | None:
    """`steps` for a task on a GPU, unless a gradient of the user's own has to be computed."""
    if not isinstance(task, Supervised):
        return None
    ours = all(getattr(task, name) == MethodType(vars(Supervised)[name], task) for name in REPLACED)
    return partial(steps, task) if ours else None


def steps(task: Supervised, job: Job, k: int, w: Array, batches: Iterable[Batch]) -> tuple[Array, float]:
    """Parameters after the last batch, and loss of the first, of the k-th client of a job, from `w` (d,).

    The formulas are those of Serial, which copies parameters and gradient in every step; sums may round otherwise.
    """
    flat, local, client, first = task.working.flat, job.local, int(job.clients[k]), None
    flat.load(w)
    shared, pull = slice(task.d), flat.grad[: task.d]  # what is sent comes before the client's own part
    sent = flat.params[shared].clone() if local.prox else None
    drift = None if job.drift is None else torch.from_numpy(job.drift[k]).to(flat.params.device)
    optimizer, lr = None if local.plain else Optimizer(flat.params, task.slots, local, job.t), local.rate(job.t)
    for batch in batches:
        loss = task.backward(client, batch)
        if first is None:
            first = loss + task.ridge / 2 * flat.params.dot(flat.params)
        if sent is not None:
            pull.add_(flat.params[shared] - sent, alpha=local.prox)
        if drift is not None:
            pull.add_(drift)
        if optimizer:
            optimizer.step(flat.grad)
        else:
            flat.params.add_(flat.grad, alpha=-lr)
    assert first is not None, "a client that trains has a batch"
    back = torch.cat([flat.params, first.view(1)]).cpu().numpy()
    return back[:-1], float(back[-1])

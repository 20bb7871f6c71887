"""The local steps of a client of a torch model, which goes to its device once and comes back once."""

from collections.abc import Callable, Iterable
from functools import partial
from types import MethodType
from typing import Any, cast

import torch

from fedstale.core import Array, DeviceArray, Job, Task
from fedstale.engines.optimizers import Optimizer
from fedstale.tasks.supervised import Batch, Supervised

REPLACED = ("gradient", "backward")  # methods of a task that `steps` does without


def steps_of(task: Task) -> Callable[..., tuple[Array, float]] | None:
    """`steps` for a task with a torch model, unless a gradient of the user's own has to be computed."""
    if not isinstance(task, Supervised):
        return None
    ours = all(getattr(task, name) == MethodType(vars(Supervised)[name], task) for name in REPLACED)
    return partial(steps, task) if ours else None


def steps(task: Supervised, job: Job, k: int, w: Array, batches: Iterable[Batch]) -> tuple[Array, Any]:
    """Parameters after the last batch, and loss of the first, of the k-th client of a job, from `w` (d,).

    The bits are those of Serial's loop over `task.gradient`, which copies parameters and gradient in every step.
    Where `w` is on the device, both stay there.
    """
    flat, local, client, said = task.working.flat, job.local, int(job.clients[k]), list[torch.Tensor]()
    flat.load(w)
    shared, pull = slice(task.d), flat.grad[: task.d]  # what is sent comes before the client's own part
    sent = flat.params[shared].clone() if local.prox else None
    drift = None if job.drift is None else torch.from_numpy(job.drift[k]).to(flat.params.device)
    optimizer, lr = None if local.plain else Optimizer(flat.params, task.slots, local, job.t), local.rate(job.t)
    for batch in batches:
        loss = task.backward(client, batch)
        if not said:
            said = [loss.view(1), *([flat.params.dot(flat.params).view(1)] if task.ridge else [])]
        if sent is not None:
            pull.add_((flat.params[shared] - sent).mul_(local.prox))
        if drift is not None:
            pull.add_(drift)
        if optimizer:
            optimizer.step(flat.grad)
        else:
            flat.params.sub_(flat.grad.mul_(lr))
    if isinstance(w, DeviceArray):
        return cast(Array, DeviceArray(flat.params)), DeviceArray(said[0] + task.ridge / 2 * sum(said[1:]))
    d = len(flat.params)
    back = torch.cat([flat.params, *said]).cpu().numpy()
    loss, *squares = back[d:].tolist()
    return back[:d], loss + task.ridge / 2 * sum(squares)

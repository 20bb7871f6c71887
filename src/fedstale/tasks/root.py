"""A few labelled samples at the server, by which a defence judges what clients send."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from fedstale.core import Array, BadInput, require, stream
from fedstale.tasks.losses import Loss, cross_entropy
from fedstale.tasks.split import Data, InputData, Split
from fedstale.tasks.supervised import Batch, Supervised


class Root:
    """The gradients of the loss on samples of the server, one for each label: `Defence(root=Root(Net, x, y))`.

    `model`, `x`, `y`, `loss` and `device` are as in `Supervised`; targets that are no class numbers count as one
    label. Five samples of each label were enough in docs/guides/liars.md.
    """

    def __init__(
        self, model: nn.Module | Callable[[], nn.Module], x: InputData, y: Data, *, loss: Loss = cross_entropy,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        whole = Split.joined([(x, y)])
        parts = [whole.take(rows) for rows in _by_label(whole.y)]
        self.task = Supervised(model, Split.joined(parts), loss=loss, device=device)
        try:
            if (self.task.samples == 1).any():
                self(self.task.init(0))
        except BadInput as error:  # of BatchNorm, say
            single = [y[0].tolist() for _, y in parts if len(y) == 1]
            raise BadInput(
                f"a root must have two samples of each label for this model, got one of {single}"
            ) from error

    def __call__(self, params: Array) -> Array:
        """(labels, d)"""
        d, offsets = self.task.d, self.task.train.offsets.tolist()
        require(len(params) == d, f"the root samples are for a model of {d} parameters, got one of {len(params)}")
        seed = 0 if self.task.stochastic else None
        rows = [torch.arange(*pair, device=self.task.device) for pair in pairwise(offsets)]
        found = [self.task.gradient(params, k, Batch(span, seed))[1].copy() for k, span in enumerate(rows)]
        return np.stack(found)

    def __repr__(self) -> str:
        return f"Root({self.task.samples.sum()} samples, {self.task.n} labels)"


def root_of(task: Supervised, samples: int) -> Root:
    """A root of so many copies of training samples, drawn from all clients, about as many of each label."""
    ok = isinstance(task.train, Split) and not task.personal
    require(ok, "defence.root needs samples in tensors and a model without personal layers, got another task")
    groups = [stream(0, "root", k).permutation(rows.cpu()) for k, rows in enumerate(_by_label(task.train.y))]
    least = f"one sample for each of {len(groups)} labels"
    require(samples >= len(groups), f"defence.root must be at least {least}, got {samples}")
    ranked = sorted((place, k, row) for k, rows in enumerate(groups) for place, row in enumerate(rows.tolist()))
    rows = torch.tensor([row for _, _, row in ranked[:samples]], device=task.device)
    x, y = task.train.take(rows)
    return Root(task.module, x, y, loss=task.loss, device=str(task.device))


def _by_label(y: torch.Tensor) -> list[torch.Tensor]:
    """The rows of each label, or all of them if targets are no class numbers."""
    if y.ndim != 1 or y.is_floating_point():
        return [torch.arange(len(y), device=y.device)]
    return [torch.nonzero(y == label).flatten() for label in np.unique(y.cpu())]

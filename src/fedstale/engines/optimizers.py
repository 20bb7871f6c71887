"""Optimizers of torch for the local steps of one client: the same bits as a training loop in plain PyTorch."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from fedstale.core import Array, BadInput, Local, imported, require

KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


class Optimizer:
    """A fresh optimizer that moves the vector `w` (d,) in place, one parameter of the model after the other.

    `w` and the gradients are arrays, or tensors on one device.
    """

    def __init__(self, w: Array | Tensor, slots: Sequence[Any], local: Local, t: int) -> None:
        flat = torch.as_tensor(w)
        self.places = [(slot.where, slot.shape) for slot in slots] or [(slice(None), w.shape)]
        self.params = [nn.Parameter(flat[where].view(shape)) for where, shape in self.places]
        self.clip, self.rates = local.clip_norm, (local.rate(t, k) for k in count()) if local.by_step else None
        make, settings = optimizer(local)
        try:
            self.optimizer = make(self.params, lr=local.rate(t), **settings)
        except (TypeError, ValueError) as error:
            raise BadInput(f"optimizer {local.optimizer!r} does not take these settings: {error}") from error

    def step(self, gradient: Array | Tensor) -> None:
        """One step along a gradient (d,), which may be clipped in place."""
        flat = torch.as_tensor(gradient)
        for p, (where, shape) in zip(self.params, self.places, strict=True):
            p.grad = flat[where].view(shape)
        if self.clip:
            nn.utils.clip_grad_norm_(self.params, self.clip)
        if self.rates:
            rate = next(self.rates)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        self.optimizer.step()


def optimizer(local: Local) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The class of the optimizer that local training asks for, and its settings besides lr."""
    asked = local.optimizer
    settings = dict(asked) if isinstance(asked, Mapping) else {}
    kind = settings.pop("kind", "sgd") if isinstance(asked, Mapping) else asked
    if local.momentum:
        settings |= {"momentum": local.momentum, "nesterov": local.nesterov}
    if local.weight_decay:
        settings["weight_decay"] = local.weight_decay
    if not isinstance(kind, str):
        return kind, settings
    if kind in KINDS:
        return KINDS[kind], settings
    made = imported(kind, "optimizer")
    require(callable(made), f"optimizer {kind!r} must be a class of optimizers, got {made!r}")
    return made, settings

"""A model tried on two samples before anything is trained: what it says, what it changes and whether it draws."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedstale.core import BadInput
from fedstale.tasks.checks import check_classes, warn_of_softmax
from fedstale.tasks.flat import changed_buffers, seeded
from fedstale.tasks.losses import (
    HasLoss,
    Loss,
    answer,
    classifies,
    is_cross_entropy,
    is_sum,
    one_value,
    outputs_of,
)  # fmt: skip
from fedstale.tasks.split import Lazy, Split, leaves, mapped


class Trial(NamedTuple):
    """What a model did with two samples, on the CPU."""

    said: Any
    y: Tensor  # the targets of the samples
    changed: tuple[str, ...]  # buffers
    drew: bool  # random numbers of torch


class LossKind(NamedTuple):
    """What the loss and the scores of a model's answers are."""

    computes_loss: bool  # the model itself does
    has_cross_entropy: bool
    classifies: bool  # so that there is an accuracy
    one_value: bool  # for a batch, not one per sample
    sums: bool  # that value grows with the batch


def tried(module: nn.Module, train: Split | Lazy, device: torch.device) -> Trial:
    """The trial of a module on the first and the last training sample; refuses inputs that it cannot take."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    ends = [0, train.offsets[-1] - 1]  # if need be one sample twice
    with seeded(0):
        fresh = torch.get_rng_state()
        x, y = train.take(torch.tensor(ends, device=device))
        said = _answer(module, mapped(Tensor.cpu, x))
        drew = not torch.equal(fresh, torch.get_rng_state())
    return Trial(said, y.cpu(), changed_buffers(module, before), drew)


def kind_of(loss: Loss, trial: Trial, splits: Sequence[Split | Lazy]) -> LossKind:
    """Find out what the loss of such answers is; refuses what cannot be trained, or not on these samples."""
    said, y = trial.said, trial.y
    outputs, computes = outputs_of(said).detach(), isinstance(said, HasLoss) and said.loss is not None
    entropy = not computes and is_cross_entropy(loss, outputs, y)
    if entropy:
        check_classes(outputs, *splits)
        warn_of_softmax(outputs)
    one = not computes and one_value(loss, outputs, y) and not entropy
    return LossKind(computes, entropy, classifies(outputs, y), one, one and is_sum(loss, outputs, y))


def _answer(module: nn.Module, x: Any) -> Any:
    try:
        return answer(module, x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shapes, types = (
            ", ".join(str(f(v)) for v in leaves(x)) for f in (lambda v: tuple(v.shape), lambda v: v.dtype)
        )
        first = str(error).splitlines()[0]
        raise BadInput(f"the model must take inputs {shapes} of {types}, got: {first}") from error

"""Losses and accuracy of what a model returns: a tensor, or an object with `.logits` (Hugging Face)."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedstale.core import BadInput, require, shown
from fedstale.tasks.split import Inputs

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs (b, …), targets (b, …) -> (b, …), or () for the whole batch
IGNORED = -100  # the target of a position that does not count, as in torch
LANES = {"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 0)  # float32 numbers of a register


@runtime_checkable
class HasLogits(Protocol):
    """What a model of Hugging Face returns."""

    @property
    def logits(self) -> Tensor: ...


@runtime_checkable
class HasLoss(Protocol):
    """What it returns if labels are among the inputs; else the loss is None."""

    @property
    def loss(self) -> Tensor | None: ...


def answer(model: Callable[..., Any], x: Inputs) -> Any:
    """What the model says: a tuple of inputs is passed by position, a dict by keyword."""
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def outputs_of(answer: Any) -> Tensor:
    """The outputs, or logits, in a model's answer."""
    if isinstance(answer, Tensor):
        return answer
    outputs = answer.logits if isinstance(answer, HasLogits) else answer
    if not isinstance(outputs, Tensor):
        raise BadInput(f"a model must return a tensor, or an object with .logits, got {type(answer).__name__}")
    return outputs


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """(b,) of outputs (b, classes) and class numbers (b,); of (b, t, classes) and (b, t), the mean over positions.

    Positions whose target is -100 do not count.
    """
    if outputs.ndim == 2:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")
    losses = nn.functional.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none", ignore_index=IGNORED)
    return _over_positions(losses, targets)


def scored_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The same bits without a gradient, several times as fast where there are few classes.

    torch reduces the row of a sample by registers. A row that fills none is added up number by number, which it
    does for a register full of samples at once if the classes are the first dimension.
    """
    few = outputs.ndim == 2 and outputs.shape[1] < LANES and outputs.device.type == "cpu"
    if not few or outputs.dtype != torch.float32:
        return cross_entropy(outputs, targets)
    full = nn.functional.pad(outputs.t(), (0, -len(outputs) % LANES))  # a rest would be rounded otherwise
    logs = nn.functional.log_softmax(full, 0).t()
    return nn.functional.nll_loss(logs[: len(outputs)], targets, reduction="none")


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """(b,) whether the largest output is the target's; of sequences, the share of positions where it is."""
    hits = outputs.argmax(-1) == targets
    return hits if hits.ndim == 1 else _over_positions(hits.float(), targets)


def classifies(outputs: Tensor, targets: Tensor) -> bool:
    """Whether the targets are class numbers and the outputs have a number for every class."""
    numbers = not targets.is_floating_point() and outputs.is_floating_point()
    return numbers and outputs.ndim > 1 and outputs.shape[:-1] == targets.shape and outputs.shape[-1] > 1


def is_cross_entropy(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the loss is `cross_entropy`, or torch's with the same values."""
    if type(loss) is not nn.CrossEntropyLoss:
        return loss is cross_entropy
    plain = loss.weight is None and loss.label_smoothing == 0 and loss.reduction != "sum"
    return plain and outputs.ndim == 2 and not targets.is_floating_point()


def one_value(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the loss gives one value for a batch, not one per sample; refuses anything else."""
    b, what = len(targets), f"{tuple(outputs.shape)} and targets {tuple(targets.shape)} of {targets.dtype}"
    ok = callable(loss) and not isinstance(loss, type)
    require(ok, f"loss must be a function of outputs and targets, such as nn.MSELoss(), got {shown(loss)}")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Using a target size")  # (b, 1) less (b,) is (b, b)
            value = loss(outputs, targets)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(f"the loss must take outputs {what}, got: {str(error).splitlines()[0]}") from error
    except UserWarning as warning:
        way = "give targets of the outputs' shape, such as y[:, None]"
        raise BadInput(f"the loss must not compare outputs {what}, which have other shapes: {way}") from warning
    require(isinstance(value, Tensor), f"a loss must return a tensor, got {shown(value)}")
    shape = tuple(value.shape)
    ok = shape == () or shape[0] == b
    require(ok, f"a loss must give one value per sample, ({b},) for {b} of them, or one for all, got {shape}")
    return shape == ()


def is_sum(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether a loss with one value for the batch grows with it (`reduction="sum"`): tried with a sample twice."""
    once, twice = (loss(outputs[rows], targets[rows]) for rows in ([0], [0, 0]))
    return bool(once != 0) and torch.allclose(twice, 2 * once)


def _over_positions(values: Tensor, targets: Tensor) -> Tensor:
    """(b, …) to their mean (b,) over the positions that count."""
    counted = (targets != IGNORED).flatten(1)
    mean: Tensor = (values.flatten(1) * counted).sum(1) / counted.sum(1).clamp(min=1)
    return mean

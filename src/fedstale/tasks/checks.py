"""What a task refuses before it trains, each in one sentence, and the trial of its model on two samples."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedstale.core import BadInput, Ids, require, shown
from fedstale.tasks import losses
from fedstale.tasks.evaluation import Metric
from fedstale.tasks.flat import changed_buffers, seeded
from fedstale.tasks.split import Lazy, Split, leaves, mapped, rows_of

OURS = ("accuracy", "loss", "objective")  # scores whose names a metric may not take


def check_metrics(metrics: Mapping[str, Metric]) -> None:
    """Refuse what is not functions by name, and names of scores that every task has."""
    ok = isinstance(metrics, Mapping) and all(map(callable, metrics.values()))
    require(ok, f"metrics must be functions by name, such as {{'mae': mae}}, got {shown(metrics)}")
    taken = [name for name in OURS if name in metrics]
    require(not taken, f"metrics must have other names than {', '.join(OURS)}, got {taken}")


def check_transform(transform: Any, train: Split | Lazy) -> None:
    """Refuse a transform that cannot be called with the inputs of a batch, or that loses some of them."""
    sentence = "transform must be a function (x, generator) that returns as many inputs as x has, got"
    require(callable(transform), f"{sentence} {shown(transform)}")
    with seeded(0):
        x, _ = train.span(0, 1)
        try:
            changed = transform(x, torch.Generator(leaves(x)[0].device).manual_seed(0))
        except (TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise BadInput(f"{sentence}: {str(error).splitlines()[0]}") from error
    ok = isinstance(changed, type(x)) and rows_of(changed) == 1
    require(ok, f"{sentence} {shown(changed)} for one of them")


def check_model(make: Any) -> None:
    """Refuse what does not make an nn.Module when it is called without arguments."""
    sentence = "model must be an nn.Module, or a function without arguments that makes one, got"
    require(callable(make), f"{sentence} {shown(make)}")
    try:
        with seeded(0):
            made = make()
    except TypeError as error:
        raise BadInput(f"{sentence}: {error}") from error
    require(isinstance(made, nn.Module), f"{sentence} one that makes {shown(made)}")


def check_sizes(sizes: Ids) -> None:
    """Refuse clients without training samples."""
    none = np.flatnonzero(sizes == 0).tolist()
    few = ", ".join(map(str, none[:5])) + (", …" if len(none) > 5 else "")
    require(not none, f"every client must have a training sample, got {len(none)} of {len(sizes)} without: {few}")


def checked_names(names: Sequence[str], n: int) -> tuple[str, ...]:
    """The names of the clients, one for each and all different."""
    found = tuple(map(str, names))
    ok = len(found) == n == len({*found})
    require(ok, f"names must be {n} different names, one for each client, got {len({*found})} of {len(found)}")
    return found


def check_classes(outputs: Tensor, *splits: Split | Lazy) -> None:
    """Refuse outputs and targets in memory that cross entropy cannot compare."""
    shape = tuple(outputs.shape)
    for y in (split.y for split in splits if isinstance(split, Split) and len(split.y)):
        ok = outputs.ndim == 2 or outputs.ndim == y.ndim + 1 > 2
        require(ok, f"the model must give (b, classes) for cross entropy, or (b, t, classes), got {shape}")
        ok = y.ndim != outputs.ndim - 1 or shape[1:-1] == tuple(y.shape[1:])
        last = "with the classes last (leave out a transpose(1, 2))"
        require(ok, f"the model must give (b, t, classes), {last}, got {shape} for targets {tuple(y.shape)}")
        counted = y if y.ndim == 1 else y[y != losses.IGNORED]
        low, high = (counted.min().item(), counted.max().item()) if len(counted) else (0, 0)
        ok = not y.is_floating_point() and y.ndim == outputs.ndim - 1 and low >= 0 and high < shape[-1]
        got = f"{y.dtype} {tuple(y.shape)} from {low} to {high}"
        got += _way(y, outputs.ndim - 1, low, high, shape[-1])
        require(ok, f"targets must be class numbers from 0 to {shape[-1] - 1}, one per sample, got {got}")


def _way(y: Tensor, ndim: int, low: float, high: float, classes: int) -> str:
    """What to do about targets that are no class numbers, if that can be guessed."""
    if y.is_floating_point():
        return "; numbers need another loss, such as loss=nn.MSELoss()"
    if y.ndim == ndim + 1 and y.shape[-1] == 1:
        return "; take away the last dimension: y.squeeze(-1)"
    if low == 1 and high == classes:
        return "; they begin with 1: subtract 1"
    return f"; the model needs {int(high) + 1} outputs for them" if low >= 0 and high >= classes else ""


def warn_of_softmax(outputs: Tensor) -> None:
    """Say so if the answers of a model look as if a softmax were in it, which cross entropy has already."""
    rows = outputs.reshape(-1, outputs.shape[-1])
    shares = bool((rows >= 0).all()) and bool(torch.allclose(rows.sum(1), torch.ones(len(rows)), atol=1e-4))
    if shares and outputs.shape[-1] > 1:
        what = "the model's outputs sum to 1, as after a softmax, and cross entropy has a softmax of its own"
        warnings.warn(f"{what}: leave it out of the model, else it learns slowly", stacklevel=5)


def training_answer(module: nn.Module, x: Any, size: int, client: str) -> Any:
    """What the model says of a batch of this size; refuses one sample where BatchNorm needs more."""
    try:
        return losses.answer(module, x)
    except ValueError as error:
        if size > 1:
            raise
        way = "use drop_last with epochs, another batch size, or leave out clients with one sample"
        raise BadInput(f"the model cannot train client {client} on one sample alone ({error}): {way}") from error


def usable(name: str) -> torch.device:
    """The device of this name."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"device must be one that torch can use here, such as cpu, got {name!r}") from error


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


def kind_of(loss: losses.Loss, trial: Trial, splits: Sequence[Split | Lazy]) -> LossKind:
    """Find out what the loss of such answers is; refuses what cannot be trained, or not on these samples."""
    said, y = trial.said, trial.y
    outputs, computes = losses.outputs_of(said).detach(), isinstance(said, losses.HasLoss) and said.loss is not None
    entropy = not computes and losses.is_cross_entropy(loss, outputs, y)
    if entropy:
        check_classes(outputs, *splits)
        warn_of_softmax(outputs)
    one = not computes and losses.one_value(loss, outputs, y) and not entropy
    return LossKind(computes, entropy, losses.classifies(outputs, y), one, one and losses.is_sum(loss, outputs, y))


def _answer(module: nn.Module, x: Any) -> Any:
    try:
        return losses.answer(module, x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shapes, types = (
            ", ".join(str(f(v)) for v in leaves(x)) for f in (lambda v: tuple(v.shape), lambda v: v.dtype)
        )
        first = str(error).splitlines()[0]
        raise BadInput(f"the model must take inputs {shapes} of {types}, got: {first}") from error

"""Image classification: a divided dataset and a model as a task."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedstale.core import require, shown
from fedstale.data.federated import Federated
from fedstale.tasks.evaluation import Metric
from fedstale.tasks.losses import Loss, cross_entropy
from fedstale.tasks.models import Model
from fedstale.tasks.split import Split, Weighting, even
from fedstale.tasks.supervised import Aggregate, Precision, Supervised, Transform, Treatment


def image_task(
    federated: Federated,
    model: Model | Callable[[], nn.Module],
    *,
    weights: npt.ArrayLike | Weighting = even,
    loss: Loss = cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    transform: Transform | None = None,
    buffers: Treatment = "average",
    personal: Sequence[str] = (),
    ridge: float = 0.0,
    device: str = "cpu",
    precision: Precision = "float32",
    aggregate: Aggregate = "cpu",
) -> Supervised:
    """The model trained on these clients' images, scaled to mean 0 and deviation 1 per channel, or on other inputs.

    `model` is one of `fs.models`, or a function that makes an nn.Module; the settings are those of Supervised.
    Pixels are kept as float32: 38 MB for the 12,000 images of a fifth of MNIST, 737 MB for all of
    CIFAR-10. Scaling bytes anew in every step would take a quarter of that, and more time.
    """
    ok = isinstance(federated, Federated)
    way = "Supervised takes pairs (x, y)"
    require(ok, f"image_task takes what fs.data.federate returns, got {shown(federated)}; {way}")
    train, test = splits(federated)
    central, validation, held_out = (
        None if group is None else Split.of(_scaled(group.x, federated), group.y, group.offsets)
        for group in (federated.central_test, federated.validation, federated.held_out)
    )
    made = Supervised(
        partial(model.build, federated.x.shape[1:], federated.classes) if isinstance(model, Model) else model,
        train,
        test if central is None else None,
        central_test=None if central is None else (central.x, central.y),
        validation=validation,
        held_out=held_out,
        weights=weights,
        loss=loss,
        metrics=metrics,
        transform=transform,
        buffers=buffers,
        personal=personal,
        ridge=ridge,
        device=device,
        precision=precision,
        aggregate=aggregate,
        names=federated.names,
        note=federated.note,
    )
    if federated.class_names:
        made.class_names = federated.class_names
    return made


def splits(federated: Federated) -> tuple[Split, Split]:
    """Training and test samples, their pixels scaled to mean 0 and deviation 1 per channel."""
    train = Split.of(_scaled(federated.x, federated), federated.y, federated.train_offsets)
    return train, Split.of(_scaled(federated.test_x, federated), federated.test_y, federated.test_offsets)


def _scaled(pixels: npt.NDArray[Any], federated: Federated) -> Tensor | npt.NDArray[Any]:
    """With mean 0 and deviation 1 per channel; inputs of a dataset without these numbers are left as they are."""
    if not federated.mean:
        return pixels
    shape = (-1, *[1] * (pixels.ndim - 2))
    mean, std = (torch.tensor(values).view(shape) for values in (federated.mean, federated.std))
    return torch.tensor(pixels, dtype=torch.float32).div_(federated.scale).sub_(mean).div_(std)

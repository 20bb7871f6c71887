"""Which models have a closed form."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedstale.tasks.flat import Slot


def dense_sizes(module: nn.Module, x: Tensor, slots: Sequence[Slot]) -> tuple[int, ...] | None:
    """(inputs, hidden …, classes) if the model is Linear, ReLU, …, Linear on flat inputs, else None."""
    layers = _leaves(module)
    if type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
        layers = layers[1:]
    elif x.ndim != 2:
        return None
    linear = [m for m in layers[::2] if type(m) is nn.Linear]
    relus = [m for m in layers[1::2] if type(m) is nn.ReLU]
    if (
        x.dtype != torch.float32
        or not linear
        or len(linear) != len(relus) + 1
        or 2 * len(linear) != len(layers) + 1
    ):
        return None
    sizes = (linear[0].in_features, *(m.out_features for m in linear))
    shapes = [shape for i, o in pairwise(sizes) for shape in ((o, i), (o,))]
    return sizes if [slot.shape for slot in slots] == shapes else None  # all trained, all with a bias


def _leaves(module: nn.Module) -> list[nn.Module]:
    return [leaf for child in module for leaf in _leaves(child)] if type(module) is nn.Sequential else [module]

"""Models whose layers faster engines know: linear models, MLPs and small CNNs, written as nn.Sequential."""

import re
from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from fedstale.engines.kernels.stages import Stage
from fedstale.tasks.flat import Slot
from fedstale.tasks.models import ChannelsLast

SMALL = 1 << 18  # numbers between the layers for one sample: more would take much memory for every thread
CNN = re.compile("(CR|CRP|CPR)+F(LR)*L")  # by the letters below


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


def stages(module: nn.Module, x: Tensor, slots: Sequence[Slot]) -> tuple[Stage, ...] | None:
    """The stages of a CNN, else None: convolutions, each with relu and perhaps 2 × 2 pooling, then dense layers."""
    layers = [layer for layer in _leaves(module) if type(layer) is not ChannelsLast]
    if x.ndim != 4 or x.dtype != torch.float32 or not CNN.fullmatch("".join(map(_letter, layers))):
        return None
    made: list[Stage] = []
    size, shapes = (x.shape[2], x.shape[3]), []
    for layer in layers:
        if type(layer) is nn.Conv2d:
            padding = (int(layer.padding[0]), int(layer.padding[1]))
            kernel = (layer.kernel_size[0], layer.kernel_size[1])
            made.append(Stage(layer.in_channels, layer.out_channels, size, kernel, padding))
            shapes += [(layer.out_channels, layer.in_channels, *kernel), (layer.out_channels,)]
        elif type(layer) is nn.MaxPool2d:
            made[-1] = made[-1]._replace(pool=2)
        elif type(layer) is nn.Linear:
            made.append(Stage(layer.in_features, layer.out_features))
            shapes += [(layer.out_features, layer.in_features), (layer.out_features,)]
        size = made[-1].pooled
    small = sum(s.inputs * prod(s.size) + s.outputs * prod(s.conv) for s in made) <= SMALL
    trained = [slot.shape for slot in slots] == shapes  # all, with none that is used twice
    return tuple(made) if small and trained else None


def _letter(layer: nn.Module) -> str:
    """C, P, R, F or L for a convolution, pooling, relu, flatten or linear layer in its usual form, else ?."""
    if type(layer) is nn.Conv2d:
        plain = (layer.stride, layer.dilation, layer.groups, layer.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        return "C" if plain and layer.bias is not None and not isinstance(layer.padding, str) else "?"
    if type(layer) is nn.MaxPool2d:
        size = (
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.ceil_mode,
            layer.return_indices,
        )
        return "P" if size == (2, 2, 0, 1, False, False) else "?"
    if type(layer) is nn.Flatten:
        return "F" if (layer.start_dim, layer.end_dim) == (1, -1) else "?"
    return "R" if type(layer) is nn.ReLU else "L" if type(layer) is nn.Linear and layer.bias is not None else "?"

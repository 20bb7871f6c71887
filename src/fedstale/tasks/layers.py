"""Models whose layers faster engines know: linear models, MLPs and small CNNs, as nn.Sequential, and small RNNs."""

import re
from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from fedstale.engines.kernels.gates import Gates
from fedstale.engines.kernels.stages import Stage
from fedstale.tasks.flat import Slot
from fedstale.tasks.models import ChannelsLast, NextSymbol
from fedstale.tasks.split import Split

SMALL = 1 << 18  # numbers between the layers for one sample: more would take much memory for every thread
NARROW = 64  # units of a recurrent layer: of more, torch's own products are as fast
ORDER = "weight_ih", "weight_hh", "bias_ih", "bias_hh"  # of a recurrent layer
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


def gates(module: nn.Module, train: Split, slots: Sequence[Slot]) -> Gates | None:
    """An embedding, GRUs or LSTMs and a linear layer, if the model is made of these and says what they say."""
    x, y, found = train.x, train.y, _parts(module)
    at = {slot.name: slot.where.start for slot in slots}
    numbers = x.ndim == 2 and y.ndim < 3 and not y.is_floating_point()
    if found is None or not numbers or {*at} != {*found[3]}:
        return None
    embed, cell, head, names = found
    inside = 0 <= int(y.min()) <= int(y.max()) < head.out_features and int(x.max()) < embed.num_embeddings
    small = head.in_features <= NARROW and embed.padding_idx is None and embed.max_norm is None
    every, T = y.ndim == 2, x.shape[1]
    if not (inside and small and _says(module, embed, cell, head, x.cpu(), every)):
        return None
    sizes = embed.num_embeddings, embed.embedding_dim, head.in_features, head.out_features
    return Gates(type(cell) is nn.LSTM, T, *sizes, T if every else 1, tuple(at[name] for name in names))


def _parts(module: nn.Module) -> tuple[nn.Embedding, nn.RNNBase | None, nn.Linear, list[str]] | None:
    """Embedding, recurrent layers and last layer, with the names of their parameters in the order of `Gates`."""
    if type(module) is NextSymbol:
        written = ["inputs.weight", "gates.weight", "inputs.bias", "gates.bias"]
        return module.embed, None, module.out, ["embed.weight", "out.weight", "out.bias", *written]
    leaves = [(name, leaf) for name, leaf in module.named_modules() if not [*leaf.children()]]
    kinds = [nn.Embedding, nn.LSTM if any(type(leaf) is nn.LSTM for _, leaf in leaves) else nn.GRU, nn.Linear]
    leaves = [found for kind in kinds for found in leaves if type(found[1]) is kind]
    names, layers = [name for name, _ in leaves], [leaf for _, leaf in leaves]
    match layers:
        case [nn.Embedding() as embed, nn.RNNBase() as cell, nn.Linear() as head]:
            plain = (cell.bidirectional, cell.bias, cell.proj_size, cell.dropout) == (False, True, 0, 0.0)
            if not plain or head.in_features != cell.hidden_size:
                return None
            order = [f"{what}_l{k}" for k in range(cell.num_layers) for what in ORDER]
            first = [f"{names[0]}.weight", f"{names[2]}.weight", f"{names[2]}.bias"]
            return embed, cell, head, first + [f"{names[1]}.{name}" for name in order]
    return None


def _says(
    module: nn.Module, embed: nn.Embedding, cell: nn.RNNBase | None, head: nn.Linear, x: Tensor, every: bool
) -> bool:
    """Whether the model's answers are those of the three layers in a row, also to padded and other sequences."""
    if cell is None:
        return not every
    rows, early = x[:: -(-len(x) // 64)], torch.arange(x.shape[1]) < x.shape[1] // 2
    for tried in (rows, rows.flip(0, 1), rows * early, rows * ~early):
        with torch.no_grad():
            states = embed(tried)
            states = cell(states)[0] if cell.batch_first else cell(states.transpose(0, 1))[0].transpose(0, 1)
            due = head(states if every else states[:, -1])
            try:
                got = module(tried)
            except Exception:  # whatever the user's own code says of padding
                return False
        if not isinstance(got, Tensor) or got.shape != due.shape or not torch.allclose(got, due, atol=1e-5):
            return False
    return True

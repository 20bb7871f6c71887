"""Models for images and vectors: `MLP(hidden=(64,)).build((1, 28, 28), 10)` is an nn.Module."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from fedstale.core import BadInput, part, require, shown

Shape = tuple[int, ...]


@runtime_checkable
class Model(Protocol):
    """From the shape of one input, (C, H, W) for images, and the number of classes to a fresh module."""

    def build(self, shape: Shape, classes: int) -> nn.Module: ...


class Made(NamedTuple):
    """A model of the user's own: a class of modules, or a function that makes one, with its settings."""

    name: str
    make: Callable[..., object]
    settings: Mapping[str, Any]

    def build(self, shape: Shape, classes: int) -> nn.Module:
        try:
            made = self.make(**self.settings)
        except Exception as error:  # whatever the user's own code raises
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise BadInput(f"model {self.name} cannot be made with {dict(self.settings)}: {text}") from error
        if not isinstance(made, nn.Module):
            raise BadInput(f"model {self.name} must make an nn.Module, got {shown(made)}")
        return made


@part
class Linear:
    """Linear classifier of the flattened input: convex, strongly so with a ridge."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return dense((prod(shape), classes))


@part
class MLP:
    """Fully connected network with `hidden` layer sizes, relu after each."""

    hidden: tuple[int, ...] = (200,)

    def __post_init__(self) -> None:
        _check_sizes("hidden", self.hidden)

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return dense((prod(shape), *self.hidden, classes))


@part
class CNN:
    """Convolutions of odd size `kernel`, each with relu and 2 × 2 pooling, then fully connected layers."""

    channels: tuple[int, ...] = (16, 32)
    kernel: int = 3
    hidden: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        _check_sizes("channels", self.channels)
        _check_sizes("hidden", self.hidden)
        require(self.kernel >= 1 and self.kernel % 2 == 1, f"kernel must be odd and at least 1, got {self.kernel}")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return convolutional(shape, self.channels, self.kernel, self.kernel // 2, (*self.hidden, classes))


@part
class MnistCNN:
    """FedStale's for MNIST: 3 × 3 convolutions 32, 64, then 128; 421,642 parameters for ten classes."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        _check_shape("mnist-cnn", shape, (1, 28, 28))
        return convolutional(shape, (32, 64), kernel=3, padding=1, sizes=(128, classes))


@part
class CifarCNN:
    """FedStale's for CIFAR: 5 × 5 convolutions 32, 64 without padding, then 2048; 3,353,034 parameters."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        _check_shape("cifar-cnn", shape, (3, 32, 32))
        return convolutional(shape, (32, 64), kernel=5, padding=0, sizes=(2048, classes))


@part
class FashionCNN:
    """Amplified FedAvg's for Fashion-MNIST: padded 5 × 5 convolutions 32, 32, then 128; 228,586 parameters."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        _check_shape("fashion-cnn", shape, (1, 28, 28))
        return convolutional(shape, (32, 32), kernel=5, padding=2, sizes=(128, classes))


@part
class PaddedCifarCNN:
    """Amplified FedAvg's for CIFAR: padded 5 × 5 convolutions 32, 64, then 512, 128; 2,218,314 parameters."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        _check_shape("padded-cifar-cnn", shape, (3, 32, 32))
        return convolutional(shape, (32, 64), kernel=5, padding=2, sizes=(512, 128, classes))


@part
class GRU:
    """Gated recurrent unit that reads characters (or any numbered symbols) and says which one comes next."""

    embedding: int = 8
    hidden: int = 32

    def __post_init__(self) -> None:
        _check_sizes("embedding and hidden", (self.embedding, self.hidden))

    def build(self, shape: Shape, classes: int) -> nn.Module:
        require(len(shape) == 1, f"gru takes rows of numbered symbols, got inputs {tuple(shape)}")
        return NextSymbol(classes, self.embedding, self.hidden)


class NextSymbol(nn.Module):
    """A GRU over (b, t) numbers of symbols, then a score for each symbol that may follow.

    Its steps are written out, so that many models can advance together: torch cannot stack its own GRU.
    """

    def __init__(self, symbols: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, embedding)
        self.inputs, self.gates = nn.Linear(embedding, 3 * hidden), nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, symbols)

    def forward(self, x: Tensor) -> Tensor:
        inputs = self.inputs(self.embed(x))  # (b, t, 3 hidden): reset, update, new
        h = inputs.new_zeros(len(x), self.gates.in_features)
        for now in inputs.unbind(1):
            r_x, z_x, n_x = now.chunk(3, -1)
            r_h, z_h, n_h = self.gates(h).chunk(3, -1)
            z = (z_x + z_h).sigmoid()
            h = (1 - z) * (n_x + (r_x + r_h).sigmoid() * n_h).tanh() + z * h
        scores: Tensor = self.out(h)
        return scores


class ChannelsLast(nn.Module):
    """The same images, the channels of a pixel side by side: pooling on CPU is several times faster.

    By way of a flat view, because that also sets the strides of images with one channel, which is what
    torch goes by and `contiguous(memory_format=…)` leaves alone.
    """

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.permute(0, 2, 3, 1).flatten(1).view(b, h, w, c).permute(0, 3, 1, 2)


def dense(sizes: tuple[int, ...]) -> nn.Sequential:
    """Fully connected layers from sizes[0] inputs to sizes[-1] outputs, relu in between."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutional(
    shape: Shape, channels: tuple[int, ...], kernel: int, padding: int, sizes: tuple[int, ...]
) -> nn.Sequential:
    """Convolutions, each followed by 2 × 2 pooling, then `dense` layers of the given sizes."""
    require(len(shape) == 3, f"a CNN takes (C, H, W) images, got inputs {shape}")
    inputs, *sides = shape
    layers: list[nn.Module] = [ChannelsLast()]
    for outputs in channels:
        # relu(max) = max(relu), and a quarter of the work
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
        inputs, sides = outputs, [(side + 2 * padding - kernel + 1) // 2 for side in sides]
        require(min(sides) > 0, f"{len(channels)} poolings need larger images than {shape}")
    return nn.Sequential(*layers, *dense((inputs * prod(sides), *sizes)))


def _check_sizes(name: str, sizes: tuple[int, ...]) -> None:
    require(all(size >= 1 for size in sizes), f"{name} must be sizes of at least 1, got {sizes}")


def _check_shape(name: str, got: Shape, needed: Shape) -> None:
    require(tuple(got) == needed, f"{name} takes {needed} images, got {tuple(got)}: use cnn or mlp")

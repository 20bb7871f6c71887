"""Networks of nested sub-models: early exits, `ExitCNN().build((1, 28, 28), 10)`, or slices of the width."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedstale.core import part, require
from fedstale.tasks.models import ChannelsLast, Shape


class EarlyExit(nn.Module):
    """Stages one after the other, and a classifier behind each: exit e is stages 1 … e and head e.

    Called, it gives the answers of all exits, (E, b, classes); prefix(e) computes one of them and no more.
    """

    def __init__(self, stages: Sequence[nn.Module], heads: Sequence[nn.Module]) -> None:
        super().__init__()
        ok = len(stages) == len(heads) > 0
        require(ok, f"every stage needs a head, got {len(stages)} stages and {len(heads)} heads")
        self.stages, self.heads = nn.ModuleList(stages), nn.ModuleList(heads)

    @property
    def exits(self) -> int:
        return len(self.heads)

    def forward(self, x: Tensor) -> Tensor:
        answers = []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            answers.append(head(x))
        return torch.stack(answers)

    def prefix(self, exit: int) -> "Prefix":
        """Exit 1, 2, … with the stages that it needs, not copied; parameters keep their names."""
        require(1 <= exit <= len(self.heads), f"exit must be from 1 to {len(self.heads)}, got {exit}")
        return Prefix(self, exit)


class Prefix(nn.Module):
    """The stages up to one exit and its head."""

    def __init__(self, network: EarlyExit, exit: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(network.stages[:exit])
        self.heads = nn.ModuleDict({str(exit - 1): network.heads[exit - 1]})

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        (head,) = self.heads.values()
        answer: Tensor = head(x)
        return answer


class Sliced(nn.Module):
    """A network whose "exit" e is its first channels: ordered dropout, with widths[e - 1] of each hidden layer.

    `make` builds the network of a width. The last width is 1, and every parameter of a narrower network is the
    corner of the same parameter here. FjORD (Horváth et al., 2021) and HeteroFL (Diao et al., 2021), without
    their distillation and scaling.
    """

    def __init__(self, make: Callable[[float], nn.Module], widths: Sequence[float]) -> None:
        super().__init__()
        self.whole = make(1.0)
        self._parts = tuple(make(width) for width in widths)  # in a tuple, so that they are no parameters of this

    @property
    def exits(self) -> int:
        return len(self._parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([functional_call(part, self._corners(part), x) for part in self._parts])

    def _corners(self, part: nn.Module) -> dict[str, Tensor]:
        whole = dict(self.whole.named_parameters())
        return {k: whole[k][tuple(slice(0, s) for s in p.shape)] for k, p in part.named_parameters()}

    def prefix(self, exit: int) -> "Slice":
        """Sub-model 1, 2, …, a module of its own; parameters have the names of the whole network's."""
        require(1 <= exit <= self.exits, f"exit must be from 1 to {self.exits}, got {exit}")
        return Slice(self._parts[exit - 1])


class Slice(nn.Module):
    """A narrower network."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.whole = part

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.whole(x)
        return answer


Network = EarlyExit | Sliced


class ExitModel(Protocol):
    """From the shape of one input, (C, H, W), and the number of classes to a fresh network."""

    def build(self, shape: Shape, classes: int) -> Network: ...


@part
class ExitCNN:
    """Convolutions of odd size `kernel` with relu, an exit after each; small enough to train on a CPU.

    2 × 2 pooling halves the image as long as 2 × 2 pixels are left. A head averages over quarters of the
    image and is linear, so that deeper exits know more.
    """

    channels: tuple[int, ...] = (8, 16, 32)
    kernel: int = 3

    def __post_init__(self) -> None:
        _check_convolutions(self.channels, self.kernel)

    def build(self, shape: Shape, classes: int) -> EarlyExit:
        require(len(shape) == 3, f"exit-cnn takes (C, H, W) images, got inputs {shape}")
        stages: list[nn.Module] = []
        heads, side = [], min(shape[1:])
        for inputs, outputs in pairwise((shape[0], *self.channels)):
            layers: list[nn.Module] = [] if stages else [ChannelsLast()]
            layers.append(nn.Conv2d(inputs, outputs, self.kernel, padding=self.kernel // 2))
            if side >= 4:
                layers.append(nn.MaxPool2d(2))
                side //= 2
            stages.append(nn.Sequential(*layers, nn.ReLU()))
            heads.append(pooled(outputs, classes, grid=2))
        return EarlyExit(stages, heads)


@part
class SlicedCNN:
    """A CNN of nested widths in the place of exits: sub-model e has widths[e - 1] of the channels of every layer.

    Convolutions of odd size `kernel` with relu, 2 × 2 pooling as long as 4 pixels are left, then a linear layer
    over quarters of the image. A narrow sub-model sees all layers, where an early exit sees the first ones.
    """

    channels: tuple[int, ...] = (8, 16, 32)
    widths: tuple[float, ...] = (0.25, 0.5, 1.0)
    kernel: int = 3

    def __post_init__(self) -> None:
        _check_convolutions(self.channels, self.kernel)
        ok = all(a < b for a, b in pairwise((0.0, *self.widths))) and self.widths[-1:] == (1.0,)
        require(ok, f"widths must be shares above 0, ascending, the last one 1, got {self.widths}")

    def build(self, shape: Shape, classes: int) -> Sliced:
        require(len(shape) == 3, f"sliced-cnn takes (C, H, W) images, got inputs {shape}")

        def make(width: float) -> nn.Module:
            kept, side = [max(1, round(width * c)) for c in self.channels], min(shape[1:])
            layers: list[nn.Module] = [ChannelsLast()]
            for inputs, outputs in pairwise((shape[0], *kept)):
                layers.append(nn.Conv2d(inputs, outputs, self.kernel, padding=self.kernel // 2))
                if side >= 4:
                    layers.append(nn.MaxPool2d(2))
                    side //= 2
                layers.append(nn.ReLU())
            return nn.Sequential(*layers, *pooled(kept[-1], classes, grid=2))

        return Sliced(make, self.widths)


@part
class ExitResNet18:
    """ResNet-18 for small images, with exits after the given residual blocks and after the eighth.

    The thesis' networks: `exits` (2, 5) for CIFAR-10, (5, 7) for CIFAR-100. GroupNorm in the place of BatchNorm,
    unless `batch_norm`, with which every exit has running statistics of its own, averaged over the nodes that
    train. A head averages over the image and is linear. `width` 64 is ResNet-18; less makes it smaller.
    """

    exits: tuple[int, ...] = (2, 5)
    width: int = 64
    groups: int = 32
    batch_norm: bool = False

    def __post_init__(self) -> None:
        ok = all(a < b for a, b in pairwise((0, *self.exits, 8)))
        require(ok, f"exits must be blocks from 1 to 7, ascending, got {self.exits}")
        ok = self.groups >= 1 and self.width >= 1 and self.width % self.groups == 0
        require(ok, f"width must be a multiple of groups, got width {self.width} and groups {self.groups}")

    def build(self, shape: Shape, classes: int) -> EarlyExit:
        require(len(shape) == 3, f"exit-resnet18 takes (C, H, W) images, got inputs {shape}")
        sizes = [self.width * 2 ** (k // 2) for k in range(8)]  # 64, 64, 128, 128, …, 512
        groups = 0 if self.batch_norm else self.groups
        stem = convolution(shape[0], self.width, 3, groups)
        layers: list[nn.Module] = [nn.Sequential(ChannelsLast(), *stem, nn.ReLU())]
        layers += [Residual(a, b, groups) for a, b in pairwise((self.width, *sizes))]
        ends = (*self.exits, 8)
        # the first stage begins with the stem
        stages = [nn.Sequential(*layers[a + 1 : b + 1]) for a, b in pairwise((-1, *ends))]
        return EarlyExit(stages, [pooled(sizes[end - 1], classes) for end in ends])


def _check_convolutions(channels: tuple[int, ...], kernel: int) -> None:
    require(bool(channels) and min(channels) >= 1, f"channels must be sizes of at least 1, got {channels}")
    require(kernel >= 1 and kernel % 2 == 1, f"kernel must be odd and at least 1, got {kernel}")


class Residual(nn.Module):
    """relu(x + two 3 × 3 convolutions of x); where the channels grow, the image shrinks by two."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        first, second = convolution(inputs, outputs, 3, groups, stride), convolution(outputs, outputs, 3, groups)
        self.body = nn.Sequential(*first, nn.ReLU(), *second)
        shrink = convolution(inputs, outputs, 1, groups, stride)  # made even if unused: it draws from the seed
        self.shortcut = nn.Sequential(*shrink) if stride == 2 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def convolution(inputs: int, outputs: int, kernel: int, groups: int, stride: int = 1) -> list[nn.Module]:
    """A convolution without a bias, and the GroupNorm behind it, or BatchNorm if there are no groups."""
    norm = nn.GroupNorm(groups, outputs) if groups else nn.BatchNorm2d(outputs)
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), norm]


def pooled(inputs: int, classes: int, grid: int = 1) -> nn.Sequential:
    """A head: the mean of every channel over the image, or over each part of it, then linear."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(grid), nn.Flatten(), nn.Linear(inputs * grid**2, classes))

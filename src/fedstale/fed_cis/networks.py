"""Networks with early exits: `ExitCNN().build((1, 28, 28), 10)` is an EarlyExit module."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
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


class ExitModel(Protocol):
    """From the shape of one input, (C, H, W), and the number of classes to a fresh network."""

    def build(self, shape: Shape, classes: int) -> EarlyExit: ...


@part
class ExitCNN:
    """Convolutions of odd size `kernel` with relu, an exit after each; small enough to train on a CPU.

    2 × 2 pooling halves the image as long as 2 × 2 pixels are left. A head averages over quarters of the
    image and is linear, so that deeper exits know more.
    """

    channels: tuple[int, ...] = (8, 16, 32)
    kernel: int = 3

    def __post_init__(self) -> None:
        ok = len(self.channels) > 0 and min(self.channels) >= 1
        require(ok, f"channels must be sizes of at least 1, got {self.channels}")
        require(self.kernel >= 1 and self.kernel % 2 == 1, f"kernel must be odd and at least 1, got {self.kernel}")

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
class ExitResNet18:
    """ResNet-18 for small images, with exits after the given residual blocks and after the eighth.

    The thesis' networks: `exits` (2, 5) for CIFAR-10, (5, 7) for CIFAR-100. GroupNorm in the place of
    BatchNorm, whose running statistics are no parameters and cannot be averaged like them. A head
    averages over the image and is linear. `width` 64 is ResNet-18; less makes it smaller.
    """

    exits: tuple[int, ...] = (2, 5)
    width: int = 64
    groups: int = 32

    def __post_init__(self) -> None:
        ok = all(a < b for a, b in pairwise((0, *self.exits, 8)))
        require(ok, f"exits must be blocks from 1 to 7, ascending, got {self.exits}")
        ok = self.groups >= 1 and self.width >= 1 and self.width % self.groups == 0
        require(ok, f"width must be a multiple of groups, got width {self.width} and groups {self.groups}")

    def build(self, shape: Shape, classes: int) -> EarlyExit:
        require(len(shape) == 3, f"exit-resnet18 takes (C, H, W) images, got inputs {shape}")
        sizes = [self.width * 2 ** (k // 2) for k in range(8)]  # 64, 64, 128, 128, …, 512
        stem = convolution(shape[0], self.width, 3, self.groups)
        layers: list[nn.Module] = [nn.Sequential(ChannelsLast(), *stem, nn.ReLU())]
        layers += [Residual(a, b, self.groups) for a, b in pairwise((self.width, *sizes))]
        ends = (*self.exits, 8)
        # the first stage begins with the stem
        stages = [nn.Sequential(*layers[a + 1 : b + 1]) for a, b in pairwise((-1, *ends))]
        return EarlyExit(stages, [pooled(sizes[end - 1], classes) for end in ends])


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
    """A convolution without a bias, and the GroupNorm behind it."""
    padding = kernel // 2
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.GroupNorm(groups, outputs)]


def pooled(inputs: int, classes: int, grid: int = 1) -> nn.Sequential:
    """A head: the mean of every channel over the image, or over each part of it, then linear."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(grid), nn.Flatten(), nn.Linear(inputs * grid**2, classes))

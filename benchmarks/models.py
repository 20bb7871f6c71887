"""Models of the workloads that the package has none of, as people write them."""

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mirrored(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Images (b, channels, height, width), half of them mirrored and all of them moved by up to four pixels."""
    half = torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5
    down, right = torch.randint(9, (2,), generator=generator).tolist()
    x = F.pad(torch.where(half, x.flip(3), x), (4, 4, 4, 4))
    return x[:, :, down : down + x.shape[2] - 8, right : right + x.shape[3] - 8]


def clipped(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], lr: float) -> float:
    """A training loop as people write it: momentum and clipped gradients; returns the loss of the first batch."""
    optimiser, first = torch.optim.SGD(model.parameters(), lr, momentum=0.9), None
    for x, y in batches:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        first = loss.item() if first is None else first
    return first or 0.0


class Resnet(NamedTuple):
    """The model of examples/resnet18.py."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        sys.path += [place for place in [str(Path(__file__).parents[1] / "examples")] if place not in sys.path]
        made: nn.Module = import_module("resnet18").resnet18()
        return made


class Recurrent(NamedTuple):
    """Embedding, recurrent layers and a linear one on the last step."""

    kind: str
    embedding: int
    hidden: int
    layers: int = 1

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return Reads(classes, self.embedding, vars(nn)[self.kind], self.hidden, self.layers)


class Reads(nn.Module):
    def __init__(
        self, symbols: int, embedding: int, kind: Callable[..., nn.RNNBase], hidden: int, layers: int
    ) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(symbols, embedding), nn.Linear(hidden, symbols)
        self.cells = kind(embedding, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.cells(self.embed(x))[0][:, -1])
        return scores


class Transformer(NamedTuple):
    """Embeddings of symbols and places, blocks of attention, a linear layer on the last step.

    With a rank, all of it is frozen but the last layer, and what is trained are low-rank adapters beside the
    queries, keys and values.
    """

    width: int
    layers: int
    heads: int = 4
    rank: int = 0

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return Attends(shape[0], classes, self)


class Attends(nn.Module):
    def __init__(self, steps: int, symbols: int, of: Transformer) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(symbols, of.width), nn.Embedding(steps, of.width)
        self.blocks = nn.Sequential(*(Block(of) for _ in range(of.layers)))
        self.norm, self.out = nn.LayerNorm(of.width), nn.Linear(of.width, symbols)
        if of.rank:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(name.startswith("out.") or name.endswith((".down", ".up")))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.norm(self.blocks(self.embed(x) + self.place.weight)[:, -1]))
        return scores


class Block(nn.Module):
    def __init__(self, of: Transformer) -> None:
        super().__init__()
        wide = of.width
        self.heads, self.norm, self.then = of.heads, nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.qkv = Adapted(wide, 3 * wide, of.rank) if of.rank else nn.Linear(wide, 3 * wide)
        self.out = nn.Linear(wide, wide)
        self.dense = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (part.view(B, T, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        return x + self.dense(self.then(x))


class Adapted(nn.Linear):
    """A linear layer plus a product of two thin matrices, the second of which begins with zeros."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs)
        self.down = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.T @ self.up.T

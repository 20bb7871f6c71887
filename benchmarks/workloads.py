"""Workloads that are measured, and who runs them: our engines, and the loop that everybody writes first."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from itertools import count, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from models import Recurrent, Resnet, Transformer, clipped, mirrored
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedstale.core import Closes, Job, Local
from fedstale.engines import make
from fedstale.tasks.models import CNN, MLP, Linear, MnistCNN, Model
from fedstale.tasks.supervised import Supervised

LR = 0.01


class Workload(NamedTuple):
    """A round: `clients` of them, each `steps` steps on batches of `batch` of its `samples` samples."""

    about: str
    model: Model
    engine: str
    shape: tuple[int, ...] = (1, 28, 28)
    hidden: tuple[int, ...] = ()  # fully connected layers
    channels: tuple[int, ...] = ()  # 3 × 3 convolutions before them
    clients: int = 13
    batch: int = 128
    steps: int = 5
    samples: int = 640
    seeds: int = 1
    betas: int = 1  # runs of one seed: they see the same samples
    classes: int = 10
    symbols: int = 0  # inputs are numbers below it; 0: they are real
    augmented: bool = False  # images are mirrored and moved
    loop: bool = False  # of the user's own: momentum, clipped gradients

    @property
    def local(self) -> Local:
        return Local(LR, self.steps, self.batch, train=own if self.loop else None)

    @property
    def runs(self) -> int:
        return self.seeds * self.betas


def own(model: nn.Module, data: Any, context: Any) -> float:
    """A training loop of the user's own, as our engines call it."""
    return clipped(model, data.batches(), context.rate)


LINEAR = Workload("linear 784 → 10", Linear(), "batched")
DENSE = Workload("MLP 784-200-10", MLP((200,)), "batched", hidden=(200,))
LITTLE = Workload("MLP 784-64-10, batch 32", MLP((64,)), "batched", hidden=(64,), batch=32)
LEAF = Workload("LEAF linear 60 → 10, batch 32, 100 clients", Linear(), "batched", (60,), clients=100, batch=32)
SMALL = Workload(
    "CNN 8/16, fc 32, batch 32", CNN((8, 16), hidden=(32,)), "batched", hidden=(32,), channels=(8, 16), batch=32
)
CONVOLUTIONS = Workload("MNIST CNN 32/64, fc 128", MnistCNN(), "pool", hidden=(128,), channels=(32, 64))
RESNET = Workload(
    "ResNet-18 with BatchNorm, width 16, batch 32, 3 steps", Resnet(), "auto", (3, 32, 32),
    clients=10, batch=32, steps=3, samples=96,
)  # fmt: skip
GATED = Workload(
    "GRU 32 over 80 symbols, batch 16", Recurrent("GRU", 8, 32), "auto", (80,), clients=10, batch=16, samples=80,
    classes=80, symbols=80,
)  # fmt: skip
CELLS = GATED._replace(about="LSTM 2 × 128 over 80 symbols, batch 16", model=Recurrent("LSTM", 8, 128, 2))
TEXT = GATED._replace(about="transformer 2 × 64 over 32 symbols, batch 16", model=Transformer(64, 2), shape=(32,))
ADAPTERS = TEXT._replace(
    about="LoRA of rank 4 in a transformer 2 × 128, batch 16", model=Transformer(128, 2, rank=4)
)
WORKLOADS: Mapping[str, Workload] = {
    "leaf": LEAF,
    "linear": LINEAR,
    "mlp": DENSE,
    "mlp-64": LITTLE,
    "leaf-15": LEAF._replace(about=f"{LEAF.about}, 15 runs", seeds=3, betas=5),
    "linear-15": LINEAR._replace(about=f"{LINEAR.about}, 15 runs", seeds=3, betas=5),
    "mlp-15": DENSE._replace(about=f"{DENSE.about}, 15 runs", seeds=3, betas=5),
    "cnn": SMALL,
    "cnn-15": SMALL._replace(about=f"{SMALL.about}, 15 runs", seeds=3, betas=5),
    "mnist-cnn": CONVOLUTIONS,
    "resnet18": RESNET,
    "gru": GATED,
    "gru-15": GATED._replace(about=f"{GATED.about}, 15 runs", seeds=3, betas=5),
    "lstm": CELLS,
    "transformer": TEXT,
    "lora": ADAPTERS,
    "resnet18-augmented": RESNET._replace(about=f"{RESNET.about}, images mirrored and moved", augmented=True),
    "transformer-loop": TEXT._replace(about=f"{TEXT.about}, own loop with momentum and clipping", loop=True),
}

Client = tuple[torch.Tensor, torch.Tensor]  # inputs, targets
Round = Callable[[], object]


@cache
def samples(w: Workload) -> list[Client]:
    """Random inputs and labels, the same for every contender."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((w.clients, w.samples, *w.shape), np.float32)
    x = rng.integers(0, w.symbols, x.shape) if w.symbols else x
    y = rng.integers(0, w.classes, (w.clients, w.samples))
    return [(torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in zip(x, y, strict=True)]


def plain(w: Workload) -> nn.Module:
    """The model as people write it."""
    if isinstance(w.model, Resnet | Recurrent | Transformer):
        return w.model.build(w.shape, w.classes)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((w.shape[0], *w.channels)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    with torch.no_grad():
        flat = prod(nn.Sequential(*layers)(torch.zeros(1, *w.shape)).shape)
    layers.append(nn.Flatten())
    for inputs, outputs in pairwise((flat, *w.hidden, w.classes)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def flops(w: Workload) -> int:
    """Multiplications and additions of the products of a round."""
    with FlopCounterMode(display=False) as counter:
        x = torch.zeros(w.batch, *w.shape, dtype=torch.float64)  # oneDNN's LSTM, for float32, is not counted
        plain(w).double()(x.long() if w.symbols else x).sum().backward()
    return int(counter.get_total_flops()) * w.steps * w.clients * w.runs


@contextmanager
def ours(w: Workload, engine: str = "") -> Iterator[Round]:
    """A round in an engine of ours, another one every time it is played."""
    changed = mirrored if w.augmented else None
    task = Supervised(partial(w.model.build, w.shape, w.classes), samples(w), transform=changed)
    local = w.local  # made and checked once, as in a simulation
    made, numbers, params = make(engine or w.engine, task, local), count(1), task.init(0)
    apart = [params + np.float32(1e-3 * k) for k in range(w.betas)]

    def play() -> object:
        t = next(numbers)
        return made.train([Job(p, np.arange(w.clients), s, t, local) for s in range(w.seeds) for p in apart])

    try:
        yield play
    finally:
        if isinstance(made, Closes):
            made.close()


def fastest_product(side: int) -> float:
    """Seconds of one product of square matrices, best of several: the machine's peak."""
    a, out, best = torch.randn(side, side), torch.empty(side, side), float("inf")
    for _ in range(10):
        start = time.perf_counter()
        torch.mm(a, a, out=out)
        best = min(best, time.perf_counter() - start)
    return best


def naive(w: Workload) -> Round:
    """For every run and every client a copy of the model, an optimiser of its own and a plain loop."""
    clients, start = samples(w), plain(w)

    def play() -> object:
        return [[update(start, x, y, w) for x, y in clients] for _ in range(w.runs)]

    return play


def update(start: nn.Module, x: torch.Tensor, y: torch.Tensor, w: Workload) -> torch.Tensor:
    """(d,) local minus sent, of one client."""
    pairs = zip(trained(copy.deepcopy(start), x, y, w).parameters(), start.parameters(), strict=True)
    return torch.cat([(after - before).detach().flatten() for after, before in pairs if before.requires_grad])


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: Workload) -> nn.Module:
    """The model after the local steps of one client."""
    order = torch.cat([torch.randperm(len(y)) for _ in range(-(-w.steps * w.batch // len(y)))])
    rows = order[: w.steps * w.batch].view(w.steps, w.batch)
    batches = ((mirrored(x[batch], None) if w.augmented else x[batch], y[batch]) for batch in rows)
    if w.loop:
        clipped(model, batches, LR)
        return model
    optimiser, loss = torch.optim.SGD(model.parameters(), LR), nn.CrossEntropyLoss()
    for inputs, targets in batches:
        optimiser.zero_grad()
        loss(model(inputs), targets).backward()
        optimiser.step()
    return model

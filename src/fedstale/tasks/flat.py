"""A module's parameters as one flat vector, and torch's random numbers from named streams."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from fedstale.core import Array, require

CPU = torch.device("cpu")


class Slot(NamedTuple):
    """Where a parameter lives in the flat vector."""

    name: str
    shape: tuple[int, ...]
    where: slice


def trained(module: nn.Module) -> Mapping[str, nn.Parameter]:
    """The parameters that require a gradient, each once however often it is used."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def slots(module: nn.Module) -> tuple[Slot, ...]:
    """Where each trained parameter lives in the flat vector; refuses other types than float32."""
    params = trained(module)
    require(len(params) > 0, "a model must have a parameter that requires a gradient, got none")
    other = {name: p.dtype for name, p in params.items() if p.dtype != torch.float32}
    require(not other, f"trained parameters must be float32, got {other}")
    stops = np.cumsum([p.numel() for p in params.values()]).tolist()
    return tuple(
        Slot(name, tuple(p.shape), slice(stop - p.numel(), stop))
        for (name, p), stop in zip(params.items(), stops, strict=True)
    )


def vector(module: nn.Module) -> Array:
    """(d,) a copy of the trained parameters."""
    with torch.no_grad():
        flat: Array = torch.cat([p.flatten().cpu() for p in trained(module).values()]).numpy()
    return flat


class Flat:
    """A module whose trained parameters are views of one vector, and their gradients of another."""

    def __init__(self, module: nn.Module, slots: Sequence[Slot], device: torch.device) -> None:
        self._host = vector(module)  # (d,)
        self.module = module.to(device)
        self.params = torch.from_numpy(self._host).to(device)  # on the CPU the same memory
        self.grad = torch.zeros_like(self.params)
        for p, slot in zip(trained(module).values(), slots, strict=True):
            p.data = self.params[slot.where].view(slot.shape)
            p.grad = self.grad[slot.where].view(slot.shape)

    def load(self, params: Array) -> None:
        """Set all trained parameters."""
        np.copyto(self._host, params)
        if self.params.device != CPU:
            self.params.copy_(torch.from_numpy(self._host))


def draw(rng: np.random.Generator) -> int:
    """A seed for torch."""
    return int(rng.integers(2**63))


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """torch's generators start from `seed` inside, and go on as if nothing had happened afterwards."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.manual_seed(seed)
        yield

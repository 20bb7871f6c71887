"""A torch model as flat vectors: parameters and buffers, those that a client keeps, and torch's random numbers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # of BatchNorm and InstanceNorm

from fedstale.core import Array, DeviceArray, Floats, State, require, shown

CPU = torch.device("cpu")


class Slot(NamedTuple):
    """Where a parameter lives in the flat vector."""

    name: str
    shape: tuple[int, ...]
    where: slice


def trained(module: nn.Module) -> Mapping[str, nn.Parameter]:
    """The parameters that require a gradient, each once however often it is used."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def slots(module: nn.Module, personal: Sequence[str] = ()) -> tuple[Slot, ...]:
    """Where each trained parameter lives in the flat vector, `personal` ones last; refuses types but float32."""
    params = dict(sorted(trained(module).items(), key=lambda item: item[0] in personal))  # else in their order
    require(len(params) > 0, "a model must have a parameter that requires a gradient, got none")
    other = {name: p.dtype for name, p in params.items() if p.dtype != torch.float32}
    require(not other, f"trained parameters must be float32, got {other}")
    stops = np.cumsum([p.numel() for p in params.values()]).tolist()
    return tuple(
        Slot(name, tuple(p.shape), slice(stop - p.numel(), stop))
        for (name, p), stop in zip(params.items(), stops, strict=True)
    )


def vector(module: nn.Module, slots: Sequence[Slot] = ()) -> Array:
    """(d,) a copy of the trained parameters, in the order of the slots or of the module."""
    params = trained(module)
    with torch.no_grad():
        names = [slot.name for slot in slots] or params
        flat: Array = torch.cat([params[name].flatten().cpu() for name in names]).numpy()
    return flat


class Flat:
    """A module whose trained parameters are views of one vector, and their gradients of another."""

    def __init__(self, module: nn.Module, slots: Sequence[Slot], device: torch.device) -> None:
        self._host = vector(module, slots)
        self.module = module.to(device)
        self.params = torch.from_numpy(self._host).to(device)  # on the CPU the same memory
        self.grad = torch.zeros_like(self.params)
        params = trained(module)
        for slot in slots:
            params[slot.name].data = self.params[slot.where].view(slot.shape)
            params[slot.name].grad = self.grad[slot.where].view(slot.shape)

    @property
    def on_cpu(self) -> bool:
        """Whether the module computes in the memory of this process."""
        return self.params.device == CPU

    def load(self, params: Array) -> None:
        """Set all trained parameters."""
        if isinstance(params, DeviceArray):
            self.params.copy_(params.tensor)
            return
        np.copyto(self._host, params)
        if not self.on_cpu:
            self.params.copy_(torch.from_numpy(self._host))


class Buffers:
    """Some buffers of a module as one vector of float64, which holds float32 and counters as they are."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        owners = [name.rpartition(".") for name in names]
        self.places = [(module.get_submodule(owner), name) for owner, _, name in owners]
        device = next((b.device for b in module.buffers()), CPU)
        self.kind = torch.float32 if device.type == "mps" else torch.float64  # Apple's GPUs have no float64

    @torch.no_grad()
    def load(self, values: Floats) -> None:
        """Set all of them; a counter is rounded, for the mean of several is seldom whole."""
        if not self.places:
            return
        buffers = [owner.get_buffer(name) for owner, name in self.places]
        whole = torch.tensor(values, dtype=self.kind).to(buffers[0].device)  # in one transfer
        parts = torch.split(whole, [buffer.numel() for buffer in buffers])
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.copy_((part if buffer.is_floating_point() else part.round()).view(buffer.shape))

    def read(self) -> Floats:
        """(b,) a copy of all of them."""
        buffers = [owner.get_buffer(name).detach().to(self.kind).flatten() for owner, name in self.places]
        values: Floats = torch.cat(buffers).cpu().double().numpy() if buffers else np.zeros(0)
        return values


def changed_buffers(module: nn.Module, before: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The buffers of the layers of which one is not as before: a statistic may stay where it is by accident."""
    now = dict(module.named_buffers())
    layers = {name.rpartition(".")[0] for name, buffer in now.items() if not torch.equal(buffer, before[name])}
    return tuple(name for name in now if name.rpartition(".")[0] in layers)


def layout(slots: Sequence[Slot], buffers: Mapping[str, Tensor]) -> dict[str, list[dict[str, Any]]]:
    """Name, shape and dtype of each trained parameter, and of each buffer that training changes."""
    return {
        "parameters": [{"name": s.name, "shape": list(s.shape), "dtype": "float32"} for s in slots],
        "buffers": [
            {"name": name, "shape": list(b.shape), "dtype": str(b.dtype).removeprefix("torch.")}
            for name, b in buffers.items()
        ],
    }


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


class WorkingCopy:
    """The model that a task computes with: its parameters and buffers are set again for every use."""

    def __init__(
        self,
        module: nn.Module,
        slots: Sequence[Slot],
        device: torch.device,
        *,
        averaged: Sequence[str],
        own: Sequence[str],
    ) -> None:
        self.flat = Flat(module, slots, device)
        self.averaged = Buffers(self.flat.module, averaged)  # those that are sent
        self.own = Buffers(self.flat.module, own)  # those that stay with the client


def in_training(module: nn.Module, frozen: Sequence[str]) -> nn.Module:
    """The module in training mode, except for the layers of frozen buffers."""
    module.train()
    for name in frozen:
        module.get_submodule(name.rpartition(".")[0]).training = False
    return module


def filled(module: nn.Module, slots: Sequence[Slot], whole: Array) -> nn.Module:
    """The module with copies of a client's whole vector in its parameters."""
    params = trained(module)
    for slot in slots:
        values = np.array(whole[slot.where], np.float32).reshape(slot.shape)
        params[slot.name].data = torch.from_numpy(values)
    return module


def joined(params: Array, own: State) -> Array:
    """The whole vector of a client: what is sent, and its own part."""
    return np.concatenate([params, own["personal"]])


def own_part(state: State | None, names: Sequence[str]) -> State:
    """The state of a client, checked: it has the personal parameters and buffers of these names."""
    told, rest = ", ".join(names[:2]), "which must be given beside the parameters"
    needed = f"each client has its own part of this model ({told}, …), {rest}"
    ok = isinstance(state, Mapping) and {"personal", "buffers"} <= {*state}
    require(ok, f"{needed}: use fs.evaluate(task, s), or give s.checkpoint.clients")
    return state


def given_buffers(buffers: Floats | None, names: Sequence[str], initial: Floats) -> Floats:
    """The buffers that are averaged, checked; a model that has none to average needs none."""
    b, some = len(initial), ", ".join(names[:2])
    needed = f"training changes buffers of this model ({some}, …), which must be given beside the parameters"
    require(buffers is not None or b == 0, f"{needed}: use fs.evaluate(task, s), or give s.checkpoint.buffers")
    given = initial if buffers is None else np.asarray(buffers, np.float64)
    require(given.shape == (b,), f"buffers must be ({b},), got {given.shape}")
    return given


def personal_names(module: nn.Module, personal: Sequence[str], norms: bool) -> tuple[str, ...]:
    """The trained parameters that stay with the client: those named, or below a name, and those of `norms`."""
    ok = not isinstance(personal, str) and all(isinstance(name, str) for name in personal)
    require(ok, f'personal must be names of layers or parameters, such as ["head"], got {shown(personal)}')
    names, layers = [*trained(module)], [*personal]
    for layer in personal:
        top = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
        found = any(_below(name, layer) for name in names)
        require(found, f"personal must name trained parameters, got {layer!r}; the model has {top}")
    layers += [name for name, layer in module.named_modules() if norms and isinstance(layer, _NormBase)]
    kept = tuple(name for name in names if any(_below(name, layer) for layer in layers))
    told = ", ".join(layers)
    require(len(kept) < len(names), f"a parameter must be shared by all clients, got none besides {told}")
    return kept


def _below(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")

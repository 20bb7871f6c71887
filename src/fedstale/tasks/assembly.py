"""A torch model put together from flat vectors: parameters and buffers that are sent, and a client's own."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from fedstale.core import Array, Floats, State, require
from fedstale.tasks.flat import Buffers, Flat, Slot, trained


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

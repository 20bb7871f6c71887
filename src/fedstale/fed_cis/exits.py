"""One exit as a task of its own, and what can be measured of it: operations and gradient variance."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedstale.core import Array, Floats, Ids, Local, require, stream
from fedstale.fed_cis.networks import Network
from fedstale.tasks.flat import Slot, draw
from fedstale.tasks.local import minibatches
from fedstale.tasks.split import Samples
from fedstale.tasks.supervised import Batch, Supervised


class Exit(NamedTuple):
    """One exit as a task of its own, and where its parameters are in the whole network's vector."""

    task: Supervised  # a client is a node; the model is the prefix
    places: list[tuple[slice | Ids, slice]]  # in the whole vector, in the prefix's

    def narrow(self, params: Array) -> Array:
        """The prefix's parameters out of the whole network's."""
        part = np.empty(self.task.d, np.float32)
        for whole, mine in self.places:
            part[mine] = params[whole]
        return part

    def widen(self, part: Array, d: int) -> Array:
        """The prefix's vector as one of the whole network, zero outside the prefix."""
        params = np.zeros(d, np.float32)
        for whole, mine in self.places:
            params[whole] = part[mine]
        return params


def exit_of(
    model: Callable[[], Network], slots: Sequence[Slot], exit: int, train: Samples, test: Samples | None, *,
    ridge: float, device: str,
) -> Exit:  # fmt: skip
    """Exit 1, 2, … of a network whose parameters are at these slots."""
    task = Supervised(partial(_prefix, model, exit), train, test, ridge=ridge, device=device)
    whole = {slot.name: slot for slot in slots}
    return Exit(task, [(_corner(whole[slot.name], slot), slot.where) for slot in task.slots])


def _corner(whole: Slot, mine: Slot) -> slice | Ids:
    """Where a parameter is in the whole vector, or its first rows, columns, … if it is smaller than there."""
    if whole.shape == mine.shape:
        return whole.where
    places = np.arange(whole.where.start, whole.where.stop).reshape(whole.shape)
    return places[tuple(slice(0, k) for k in mine.shape)].ravel()


def flops(exits: Sequence[Exit]) -> Floats:
    """(E,) operations of one answer by each exit: those of convolutions and linear layers."""
    counts = []
    for exit in exits:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            exit.task.module().eval()(exit.task.train.x[:1].cpu())
        counts.append(counter.get_total_flops())
    return np.array(counts, np.float64)


def gradient_variances(exits: Sequence[Exit], params: Array, *, batch: int, batches: int, seed: int = 0) -> Floats:
    """(E,) the variance of a minibatch gradient of each exit, mean over the coordinates of its prefix.

    Over batches of the samples of all nodes, the same for every exit (thesis, appendix D, section E).
    """
    size = len(exits[0].task.train.y)
    require(batches >= 2, f"a variance needs at least 2 batches, got {batches}")
    require(batch < size, f"batch must be below the {size} training samples for gradients to vary, got {batch}")
    drawn = minibatches(size, Local(lr=1, steps=batches, batch=batch), stream(seed, "variances"))
    rows = torch.from_numpy(drawn).to(exits[0].task.device)
    return np.array([_variance(exit.task, exit.narrow(params), rows, seed) for exit in exits])


def _variance(task: Supervised, params: Array, batches: Tensor, seed: int) -> float:
    total, squares, B = np.zeros(task.d), np.zeros(task.d), len(batches)
    for k, rows in enumerate(batches):
        own = draw(stream(seed, "variances", k)) if task.stochastic else None
        gradient = task.gradient(params, 0, Batch(rows, own))[1].astype(np.float64)
        total += gradient
        squares += gradient**2
    return float((squares - total**2 / B).mean() / (B - 1))


def _prefix(model: Callable[[], Network], exit: int) -> nn.Module:
    return model().prefix(exit)

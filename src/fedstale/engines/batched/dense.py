"""Linear models and MLPs with cross entropy: gradients in closed form, the clients of all jobs in one product.

Activations are (features, samples), so that the softmax runs along contiguous samples. Rows that share
their samples share one product with the inputs: their first layers are one tall matrix.
"""

from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedstale.engines.batched.chunks import Chunk, Rows, filled, portion
from fedstale.tasks.supervised import Supervised

TALL, TINY = 16, 400  # rows of a matrix, and multiplications of a product, that take the usual path
CACHE = 4 << 20  # bytes of matrices in a chunk: measured, larger ones fall out of the cache


class Moving(NamedTuple):
    """Parameters (R, out, in) and what moves them besides the loss: ridge, prox, weight decay, drift, momentum."""

    values: Tensor
    decay: Tensor | None  # (R, 1, 1)
    shift: Tensor | None  # like the values
    momentum: Tensor | None  # (R, 1, 1)
    speed: Tensor | None  # like the values, if there is a momentum

    def begin(self) -> Tensor:
        """What the step along the loss is added to, the values or their speed, after everything else."""
        moved = self.values
        if self.speed is not None and self.momentum is not None:
            moved = self.speed.mul_(self.momentum)
        if self.decay is not None:
            moved.addcmul_(self.values, self.decay)
        if self.shift is not None:
            moved.add_(self.shift)
        return moved

    def end(self) -> None:
        """Move the values by their speed."""
        if self.speed is not None:
            self.values.add_(self.speed)


class Layer(NamedTuple):
    """One layer of R rows and what passes through it."""

    weights: Moving  # (R, out, in)
    bias: Moving  # (R, out, 1)
    out: Tensor  # (R, out, b) after the relu
    grad: Tensor  # (R, out, b) of the loss by what comes before the relu, times the rate


class Dense:
    """Rows as stacked matrices in buffers that are kept: fresh pages of memory cost more than the products."""

    wide = staticmethod(filled)  # padding is cheaper than a chunk of its own

    def __init__(self, task: Supervised, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.where = [slot.where for slot in task.slots]  # weights, bias, weights, bias, …
        self.x, self.y = task.train.x.flatten(1), task.train.y
        self.bytes = portion(task.device, CACHE)
        self._kept: dict[str, Tensor] = {}

    def room(self, b: int, sharers: int) -> int:
        """Draws whose matrices fit the cache, or the GPU."""
        weights = sum(i * o for i, o in pairwise(self.sizes))
        floats = b * self.sizes[0] + sharers * (weights + 2 * b * sum(self.sizes[1:]))
        return max(1, self.bytes // (4 * floats))

    def run(self, chunk: Chunk, rows: Rows, training: bool) -> None:
        """Train the rows of a chunk, or only compute their losses; repeated rows are written twice alike."""
        device, samples = self.x.device, torch.from_numpy(chunk.samples()).to(self.x.device)
        steps, G, b = samples.shape
        J = max(chunk.sharers, self._fewest(b))
        repeated = chunk.rows.reshape(G, -1)[:, np.arange(J) % chunk.sharers]
        index = torch.from_numpy(repeated.ravel()).to(device)
        counts = torch.from_numpy(chunk.counts()).to(device).view(G, 1, 1, b)
        scale = counts * rows.rate[index].neg().view(G, J, 1, 1)
        layers, inputs = self._load(rows, index, b), self._keep("inputs", G, b, self.sizes[0])
        outputs, grad = (a.view(G, J, -1, b) for a in (layers[-1].out, layers[-1].grad))
        minus = torch.full((1,), -1.0, device=device).expand(G, J, 1, b)
        for step in range(steps if training else 1):
            torch.index_select(self.x, 0, samples[step].view(-1), out=inputs.view(G * b, -1))
            y = self.y.index_select(0, samples[step].view(-1)).view(G, 1, 1, b).expand(G, J, 1, b)
            _forward(layers, inputs)
            if step == 0:
                entropy = outputs.logsumexp(2, keepdim=True) - outputs.gather(2, y)
                rows.losses[index] = (entropy * counts).sum((2, 3)).flatten() + rows.penalty[index]
            if training:
                torch.softmax(outputs, 2, out=grad)
                grad.scatter_add_(2, y, minus).mul_(scale)
                _backward(layers, inputs)
        if training:
            self._store(layers, rows, index)

    def _fewest(self, b: int) -> int:
        """Rows of a draw below which libraries sum the first layer's products in another order."""
        inputs, outputs = self.sizes[:2]
        return max(-(-TALL // outputs), -(-TINY // (inputs * outputs * b)))

    def _load(self, rows: Rows, index: Tensor, b: int) -> list[Layer]:
        jobs, decay, shift, layers = rows.job[index], rows.decay(index), rows.shift(index), []
        decay = None if decay is None else decay[:, None, None]
        momentum = None if rows.momentum is None else rows.momentum[index, None, None]
        for k, (i, o) in enumerate(pairwise(self.sizes)):
            both: list[Moving] = []
            for where, shape in zip(self.where[2 * k : 2 * k + 2], ((o, i), (o, 1)), strict=True):
                w = self._keep(f"{where}", len(index), *shape)
                torch.index_select(rows.params[:, where], 0, jobs, out=w.flatten(1))
                moved = None if shift is None else shift[:, where].view(-1, *shape)
                speed = None if momentum is None else self._keep(f"speed {where}", *w.shape).zero_()
                both.append(Moving(w, decay, moved, momentum, speed))
            out, grad = (self._keep(f"{name} {k}", len(index), o, b) for name in ("out", "grad"))
            layers.append(Layer(both[0], both[1], out, grad))
        return layers

    def _store(self, layers: list[Layer], rows: Rows, index: Tensor) -> None:
        jobs = rows.job[index]
        moved = [moving.values.flatten(1) for layer in layers for moving in (layer.weights, layer.bias)]
        for where, w in zip(self.where, moved, strict=True):
            sent = self._keep("sent", *w.shape)
            torch.index_select(rows.params[:, where], 0, jobs, out=sent)
            rows.updates[:, where].index_copy_(0, index, w.sub_(sent))

    def _keep(self, name: str, *shape: int) -> Tensor:
        """The buffer of that name in this shape, uninitialised; it is kept and grows if need be."""
        size = prod(shape)
        if name not in self._kept or self._kept[name].numel() < size:
            self._kept[name] = torch.empty(size, device=self.x.device)
        return self._kept[name][:size].view(shape)


def _forward(layers: list[Layer], inputs: Tensor) -> None:
    below = inputs.transpose(1, 2)  # (G, in, b)
    for k, (w, bias, out, _) in enumerate(layers):
        out.copy_(bias.values)
        many = len(below)  # G in the first layer, whose rows share their inputs, then G·J
        out.view(many, -1, out.shape[-1]).baddbmm_(w.values.view(many, -1, w.values.shape[-1]), below)
        below = out.relu_() if k < len(layers) - 1 else out


def _backward(layers: list[Layer], inputs: Tensor) -> None:
    """Every layer moves by its gradient, which is already multiplied by minus the rate."""
    for k in reversed(range(len(layers))):
        w, bias, _, grad = layers[k]
        if k:
            below = layers[k - 1]
            torch.bmm(w.values.transpose(1, 2), grad, out=below.grad)
            torch.ops.aten.threshold_backward.grad_input(below.grad, below.out, 0, grad_input=below.grad)
        came = layers[k - 1].out.transpose(1, 2) if k else inputs  # (·, b, in)
        moved = w.begin().view(len(came), -1, came.shape[-1])
        moved.baddbmm_(grad.view(len(came), -1, grad.shape[-1]), came)
        w.end()
        bias.begin().add_(grad.sum(-1, keepdim=True))
        bias.end()

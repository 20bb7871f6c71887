"""Small modules without a closed form: torch.func's batched gradients over flat parameter vectors."""

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedstale.engines.batched.chunks import Chunk, Rows, portion
from fedstale.tasks.split import Inputs, leaves, mapped
from fedstale.tasks.supervised import Supervised

FEWEST = 4  # rows of a call: convolutions over one or two stacked models take other algorithms, with other bits
MEMORY = 64 << 20  # bytes of parameters and inputs in a chunk; activations come on top


class Functional:
    """R rows of flat vectors (R, d), each with samples of its own.

    Rows do not share a convolution with their samples, and a small chunk repeats its rows up to FEWEST:
    otherwise the bits of a row would depend on how many others are computed with it. Batches are not
    padded, because a module may mix the samples of its batch; with one sample, products of a matrix and a vector
    have other bits in other places of a stack on some processors, so that such rows are computed one by one.
    """

    def __init__(self, task: Supervised) -> None:
        self.train, self.slots, self.reported = task.train, task.slots, task.reported
        module, self.bytes = task.module().to(task.device), portion(task.device, MEMORY)

        def loss(params: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
            said = functional_call(module, params, *((), x) if isinstance(x, dict) else (x,))
            return task.batch_loss(said, y)

        # by parameter: a gradient by the flat vector would add up as many vectors (d,) as there are parameters
        self.gradients = vmap(grad_and_value(loss))  # {(R, …)}, (R, b, …), (R, b, …) -> {(R, …)}, (R,)

    def wide(self, size: int, batch: int) -> int:
        """The batch as it is."""
        return size

    def room(self, b: int, sharers: int) -> int:
        """Draws whose rows fit the memory that is meant for a chunk."""
        floats: int = sharers * (
            4 * self.slots[-1].where.stop + 16 * b * sum(v[0].numel() for v in leaves(self.train.x))
        )
        return max(1, self.bytes // (4 * floats))

    def run(self, chunk: Chunk, rows: Rows, training: bool) -> None:
        """Train the rows of a chunk, or only compute their losses."""
        R, samples = len(chunk.rows), chunk.samples()
        single = samples.shape[-1] == 1
        for which in [np.full(FEWEST, k) for k in range(R)] if single else [np.arange(max(R, FEWEST)) % R]:
            index, drawn = chunk.rows[which], samples[:, which // chunk.sharers]
            self._run(torch.from_numpy(index), torch.from_numpy(drawn), rows, training)

    def _run(self, index: Tensor, samples: Tensor, rows: Rows, training: bool) -> None:
        """The rows (R,) with their samples (steps, R, b); repeated rows are written twice alike."""
        index, samples = index.to(self.train.y.device), samples.to(self.train.y.device)
        decay, shift, rate = rows.decay(index), rows.shift(index), rows.rate[index, None]
        sent = rows.params[rows.job[index]]
        w, momentum = sent.clone(), None if rows.momentum is None else rows.momentum[index, None]
        speed = torch.zeros_like(w)
        params = {slot.name: w[:, slot.where].view(-1, *slot.shape) for slot in self.slots}  # they change with w
        for step, batch in enumerate(samples if training else samples[:1]):
            x = mapped(lambda v: v[batch], self.train.x)  # noqa: B023
            grads, loss = self.gradients(params, x, self.train.y[batch])
            grad = torch.cat([grads[slot.name].flatten(1) for slot in self.slots], 1)
            if step == 0:
                rows.losses[index] = self.reported(loss, batch.shape[-1]) + rows.penalty[index]
            change = grad.mul_(-rate)
            if decay is not None:
                change.addcmul_(w, decay[:, None])
            change = change if shift is None else change.add_(shift)
            w.add_(change if momentum is None else speed.mul_(momentum).add_(change))
        if training:
            rows.updates[index] = w.sub_(sent)

"""Any other small module: torch.func's batched gradients over flat parameter vectors."""

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedstale.engines.batched.chunks import Chunk
from fedstale.engines.batched.rows import Rows
from fedstale.tasks.supervised import Supervised

MEMORY = 64 << 20  # bytes of parameters and inputs in a chunk; activations come on top


class Functional:
    """Rows (G, J, d) of flat vectors; those that share their samples share the inputs.

    Draws are not filled up: a module may mix the samples of its batch.
    """

    def __init__(self, task: Supervised) -> None:
        self.train, self.loss, self.slots, self.module = (
            task.train,
            task.loss,
            task.slots,
            task.module().to(task.device),
        )

        def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
            params = {slot.name: w[slot.where].view(slot.shape) for slot in self.slots}
            return self.loss(functional_call(self.module, params, (x,)), y).mean()

        sharers = vmap(grad_and_value(loss), in_dims=(0, None, None))
        self.gradients = vmap(sharers)  # (G, J, d), (G, b, …), (G, b) -> (G, J, d), (G, J)

    def wide(self, size: int, batch: int) -> int:
        return size

    def room(self, b: int, sharers: int) -> int:
        floats: int = 4 * sharers * self.slots[-1].where.stop + 16 * b * self.train.x[0].numel()
        return max(1, MEMORY // (4 * floats))

    def run(self, chunk: Chunk, rows: Rows, training: bool) -> None:
        J, device = chunk.sharers, self.train.x.device
        index, samples = (torch.from_numpy(a).to(device) for a in (chunk.rows, chunk.samples()))
        steps, G, _ = samples.shape
        decay, shift, rate = rows.decay(index), rows.shift(index), rows.rate[index, None]
        sent = rows.params[rows.job[index]]
        w = sent.clone()
        for step in range(steps if training else 1):
            grad, loss = self.gradients(w.view(G, J, -1), self.train.x[samples[step]], self.train.y[samples[step]])
            if step == 0:
                rows.losses[index] = loss.flatten() + rows.penalty[index]
            change = grad.view(G * J, -1).mul_(-rate)
            if decay is not None:
                change.addcmul_(w, decay[:, None])
            w.add_(change if shift is None else change.add_(shift))
        if training:
            rows.updates[index] = w.sub_(sent)

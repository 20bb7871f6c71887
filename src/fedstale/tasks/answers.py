"""What a model says of all samples of a split: batch by batch, or all at once by compiled loops."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedstale.core import Array, Ids
from fedstale.engines.kernels import load
from fedstale.engines.kernels.stages import Stage
from fedstale.tasks.flat import Flat
from fedstale.tasks.losses import answer
from fedstale.tasks.split import Lazy, Split

EVALUATION_BATCH = 256  # measured on CPU: larger batches fall out of the cache, smaller ones pay per call
Vectors = Array | Callable[[int], Array]  # the parameters of all clients, or a function of the client
Outputs = Callable[[Array, Array], Array]  # parameters (d,), inputs (M, …) -> (M, classes)


def answers(
    flat: Flat, params: Vectors, split: Split | Lazy, across: bool, compiled: Outputs | None
) -> Iterator[tuple[Any, Tensor]]:
    """What the model says of all samples in their order, and their targets, batch by batch.

    Unless `across`, no batch has samples of two clients. With `compiled` all samples in memory are one batch.
    """
    if compiled and isinstance(split, Split) and not callable(params):
        yield torch.from_numpy(compiled(params, split.x.flatten(1).numpy())), split.y
        return
    together = [split.offsets]
    if callable(params):
        together = [split.offsets[i : i + 2] for i in range(len(split.sizes))]
    for client, offsets in enumerate(together):
        flat.load(params(client) if callable(params) else params)
        for start, stop in spans(offsets, across):
            x, y = split.span(start, stop)
            yield answer(flat.module, x), y


def spans(offsets: Ids, across: bool) -> Iterator[tuple[int, int]]:
    """Rows of the batches of an evaluation, from and to; unless `across`, none has samples of two clients."""
    ends = offsets[[0, -1]] if across else offsets
    for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        for low in range(start, stop, EVALUATION_BATCH):
            yield low, min(low + EVALUATION_BATCH, stop)


def compiled_outputs(sizes: tuple[int, ...] | None, stages: Sequence[Stage] | None) -> Outputs | None:
    """Those of a linear model, which torch multiplies slowly because it is so thin, or of a small CNN."""
    if sizes and len(sizes) == 2 and (linear := load("linear")):
        inputs, classes = sizes

        def outputs(params: Array, x: Array) -> Array:
            w, bias = params[: inputs * classes].reshape(classes, inputs), params[inputs * classes :]
            return linear.outputs(x, w, bias)  # type: ignore[no-any-return]

        return outputs
    network = load("convolutional") if stages else None
    return network.Network(stages).outputs if network else None

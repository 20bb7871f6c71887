"""Evaluating a model: its answers to all samples, batch by batch or by compiled loops, and the clients' scores."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedstale.core import Array, BadInput, Floats, Ids, shown
from fedstale.engines.kernels import load
from fedstale.engines.kernels.stages import Stage
from fedstale.tasks.flat import Flat, seeded
from fedstale.tasks.local import few_threads
from fedstale.tasks.losses import answer, correct, outputs_of, scored_cross_entropy
from fedstale.tasks.split import Lazy, Scored, Split, means

if TYPE_CHECKING:
    from fedstale.tasks.supervised import Supervised


PerSample = Callable[[Any, Tensor], Tensor]  # answer, targets (b, …) -> (b,)
Metric = Callable[[Tensor, Tensor], Any]  # all outputs and targets of a client -> a number, or one per sample


def average(values: Floats, sizes: Ids, weights: Array | Floats) -> float:
    """The weighted mean over the clients that have samples: nan if none has."""
    known = sizes > 0
    a = weights[known].astype(np.float64)
    return float(a @ values[known] / a.sum()) if a.sum() > 0 else float("nan")


def client_scores(
    answers: Iterable[tuple[Any, Tensor]],
    offsets: Ids,
    per_sample: Mapping[str, PerSample],
    metrics: Mapping[str, Metric],
) -> dict[str, Floats]:
    """(n,) by name: the means of values per sample, and metrics of a client's whole set; nan without samples."""
    n = len(offsets) - 1
    columns: dict[str, list[Tensor]] = {name: [] for name in per_sample}
    found = {name: np.full(n, np.nan) for name in metrics}

    def watched() -> Iterator[tuple[Tensor, Tensor]]:
        for said, y in answers:
            for name, values in per_sample.items():
                columns[name].append(values(said, y))  # left on the device until the end
            yield outputs_of(said), y

    if not metrics:
        deque(watched(), maxlen=0)  # no outputs are kept
    for client, outputs, y in by_client(watched(), offsets) if metrics else ():
        for name, metric in metrics.items():
            found[name][client] = _mean(name, metric(outputs, y), len(y))
    return {
        name: means(torch.cat(values).cpu().double().numpy(), offsets) for name, values in columns.items()
    } | found


def _mean(name: str, value: Any, size: int) -> Any:
    """A metric's number, or the mean of its numbers, one per sample."""
    try:
        values = np.asarray("nothing" if value is None else value, np.float64)
        ok = values.size == 1 or values.shape[:1] == (size,)
    except (TypeError, ValueError):
        ok = False
    if not ok:
        what = f"metric {name!r} must return a number, or one for each of {size} samples"
        raise BadInput(f"{what}, got {shown(value)}")
    return np.mean(values)


def by_client(batches: Iterable[tuple[Tensor, Tensor]], offsets: Ids) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Number, outputs and targets of each client with samples, as soon as its last batch is there."""
    held: list[tuple[Tensor, Tensor]] = []
    first, client, n = 0, 0, len(offsets) - 1  # the row where what is held begins; the next client
    for outputs, y in batches:
        held.append((outputs.cpu(), y.cpu()))
        if client < n and first + sum(len(t) for _, t in held) >= offsets[client + 1]:
            every, targets = (torch.cat(parts) for parts in zip(*held, strict=True))
            while client < n and offsets[client + 1] <= first + len(targets):
                rows = slice(offsets[client] - first, offsets[client + 1] - first)
                if rows.start < rows.stop:
                    yield client, every[rows], targets[rows]
                client += 1
            done = int(offsets[client]) - first
            held, first = [(every[done:], targets[done:])], first + done


EVALUATION_BATCH = 256  # measured on CPU: larger batches fall out of the cache, smaller ones pay per call
DENSE_BATCH, DENSE = 2048, 1 << 18  # of an MLP with fewer parameters than this, which computes the same bits in any
DEVICE_BATCH = 4096  # on GPUs, which have no such cache and pay more per call
Vectors = Array | Callable[[int], Array]  # the parameters of all clients, or a function of the client
Outputs = Callable[[Array, Array], Array]  # parameters (d,), inputs (M, …) -> (M, classes)


def answers(
    flat: Flat, params: Vectors, split: Split | Lazy, across: bool, compiled: Outputs | None, dense: bool = False
) -> Iterator[tuple[Any, Tensor]]:
    """What the model says of all samples in their order, and their targets, batch by batch.

    Unless `across`, no batch has samples of two clients. With `compiled` all samples in memory are one batch.
    """
    if compiled and isinstance(split, Split) and not callable(params):
        yield torch.from_numpy(compiled(params, split.x.flatten(1).numpy())), split.y
        return
    batch = DEVICE_BATCH if not flat.on_cpu else DENSE_BATCH if dense else EVALUATION_BATCH
    together = [split.offsets]
    if callable(params):
        together = [split.offsets[i : i + 2] for i in range(len(split.sizes))]
    for client, offsets in enumerate(together):
        flat.load(params(client) if callable(params) else params)
        for start, stop in spans(offsets, across, batch):
            x, y = split.span(start, stop)
            yield answer(flat.module, x), y


def spans(offsets: Ids, across: bool, batch: int) -> Iterator[tuple[int, int]]:
    """Rows of the batches of an evaluation, from and to; unless `across`, none has samples of two clients."""
    ends = offsets[[0, -1]] if across else offsets
    for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        for low in range(start, stop, batch):
            yield low, min(low + batch, stop)


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


class Evaluation(NamedTuple):
    """A task and one model of it; every sample passes through the model once for each method."""

    task: "Supervised"
    params: Vectors
    answers: Callable[[Split | Lazy], Iterable[tuple[Any, Tensor]]]  # to all samples, in their order

    def test_scores(self) -> dict[str, float]:
        """The means over the clients of each set; a metric that is nan somewhere does not count there."""
        own = {s.prefix + name for s in self.task.scored for name in self.task.metrics}
        return {
            name: average(values, np.where(np.isnan(values) & (name in own), 0, s.split.sizes), s.weights)
            for s in self.task.scored
            for name, values in self.tested(s).items()
        }

    def tested(self, tests: Scored) -> dict[str, Floats]:
        """(n,) by name, of the clients of one set; nothing if it has no samples."""
        if not tests.split.offsets[-1]:
            return {}
        accuracy: dict[str, PerSample] = {"accuracy": lambda said, y: correct(outputs_of(said), y)}
        found = self._scores(tests.split, accuracy if self.task.classifies else {}, self.task.metrics)
        return {tests.prefix + name: values for name, values in found.items()}

    def objectives(self) -> Floats:
        """(n,) F_i(w), over the training samples of client i."""
        losses, ridge, params = self._scores(self.task.train, {}, {})["loss"], self.task.ridge, self.params
        if not ridge:
            return losses + 0.0  # not -0.0
        if callable(params):
            return losses + [_penalty(ridge, params(i)) for i in range(self.task.n)]
        return losses + _penalty(ridge, params)

    def _scores(
        self, split: Split | Lazy, each: Mapping[str, PerSample], whole: Mapping[str, Metric]
    ) -> dict[str, Floats]:
        """(n,) by name, the loss among them."""
        task = self.task
        if task.one_value:
            whole = {"loss": lambda outputs, y: task.reported(task.loss(outputs, y), len(y)), **whole}
        else:
            each = {**each, "loss": self._sample_losses}
        said = self.answers(split)  # the model is made before inference mode begins, for it is trained as well
        with torch.inference_mode(), few_threads(task), seeded(0) if task.stochastic else nullcontext():
            return client_scores(said, split.offsets, each, whole)

    def _sample_losses(self, said: Any, y: Tensor) -> Tensor:
        """(b,) the loss of each sample; if the model computes it, its mean over the batch."""
        if self.task.computes_loss:
            return said.loss.expand(len(y))  # type: ignore[no-any-return]
        losses = (scored_cross_entropy if self.task.has_cross_entropy else self.task.loss)(outputs_of(said), y)
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


def _penalty(ridge: float, params: Array) -> float:
    return ridge / 2 * float(params.astype(np.float64) @ params)

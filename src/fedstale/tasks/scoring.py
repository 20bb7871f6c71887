"""The scores of a supervised task, from what its model says of the samples of every client."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedstale.core import Array, Floats
from fedstale.tasks.answers import Vectors
from fedstale.tasks.evaluation import Metric, PerSample, Scored, average, client_scores
from fedstale.tasks.flat import seeded
from fedstale.tasks.local import few_threads
from fedstale.tasks.losses import correct, cross_entropy, outputs_of
from fedstale.tasks.split import Lazy, Split

if TYPE_CHECKING:
    from fedstale.tasks.supervised import Supervised


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
        losses = (cross_entropy if self.task.has_cross_entropy else self.task.loss)(outputs_of(said), y)
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


def _penalty(ridge: float, params: Array) -> float:
    return ridge / 2 * float(params.astype(np.float64) @ params)

"""A torch model and in-memory data as a task: flat numpy vectors outside, tensors inside."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedstale.core import Array, BadInput, Floats, Ids, Local, require
from fedstale.kernels import load
from fedstale.rng import stream
from fedstale.tasks.flat import Flat, draw, seeded, slots, vector
from fedstale.tasks.local import few_threads, minibatches
from fedstale.tasks.models import dense_sizes
from fedstale.tasks.optima import least_objectives
from fedstale.tasks.quadratic import normalised
from fedstale.tasks.split import Data, Split, Weighting, even

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs (b, …), targets (b, …) -> (b,)
Samples = Split | Sequence[tuple[Data, Data]]
EVALUATION_BATCH = 256  # measured on CPU: larger batches fall out of the cache, smaller ones pay per call


class Batch(NamedTuple):
    """The samples of one local step."""

    rows: Tensor  # (b,) of the training split
    seed: int | None  # of what the model itself draws (dropout), if it draws anything


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """(b,) of outputs (b, classes) and class numbers (b,)."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


class Supervised:
    """F_i(w) = mean of loss(model(x), y) over client i's training samples, plus ridge/2 ‖w‖².

    `model` is a function without arguments that makes an nn.Module: each run starts from fresh weights,
    drawn from its seed. A module in its place is copied, and every run starts from its weights. Trained
    are the float32 parameters that require a gradient; the others and all buffers are constants, the
    same in every run. Training and test samples are one (x, y) pair per client, or a Split, which
    is not copied. `weights` is one number per client, or `even` or `by_samples`. With the default loss
    the targets are class numbers and accuracy is reported; with your own, only losses are.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        train: Samples,
        test: Samples | None = None,
        *,
        weights: npt.ArrayLike | Weighting = even,
        loss: Loss = cross_entropy,
        ridge: float = 0.0,
        device: str = "cpu",
    ) -> None:
        require(ridge >= 0, f"ridge must be at least 0, got {ridge}")
        self.loss, self.ridge, self.device = loss, ridge, _usable(device)
        self.train = _split(train).to(self.device)
        self.samples = self.train.sizes  # (n,)
        self.n = len(self.samples)
        _check_sizes(self.samples)
        none = Split(self.train.x[:0], self.train.y[:0], np.zeros(self.n + 1, np.int64))
        self.test = none if test is None else _split(test).to(self.device)
        require(len(self.test.sizes) == self.n, f"test must have {self.n} clients, got {len(self.test.sizes)}")
        self.weights = normalised(weights(self.train.sizes) if callable(weights) else weights, self.n)
        self._make = partial(copy.deepcopy, copy.deepcopy(model)) if isinstance(model, nn.Module) else model
        self.slots = slots(self.module())
        self.d = self.slots[-1].where.stop
        self.stochastic = self._probe()
        known = loss is cross_entropy  # (inputs, hidden …, classes) of a linear model or an MLP, else None
        self.dense = dense_sizes(self.module(), self.train.x, self.slots) if known else None

    def module(self) -> nn.Module:
        """A fresh copy of the model, in training mode, with the constants that all runs share."""
        with seeded(draw(stream(0, "constants"))):
            return self._make().cpu().train()

    def init(self, seed: int) -> Array:
        """(d,) fresh parameters, drawn from the seed."""
        with seeded(draw(stream(seed, "init"))):
            return vector(self._make())

    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Batch]:
        start, stop = self.train.offsets[client : client + 2].tolist()
        rows = torch.from_numpy(start + minibatches(stop - start, local, rng)).to(self.device)
        seeds = [draw(rng) if self.stochastic else None for _ in range(local.steps)]
        return map(Batch, rows, seeds)

    def gradient(self, params: Array, client: int, batch: Batch) -> tuple[float, Array]:
        flat, train = self._flat, self.train
        if not flat.module.training:
            flat.module.train()
        flat.load(params)
        flat.grad.zero_()
        x, y = train.x.index_select(0, batch.rows), train.y.index_select(0, batch.rows)
        with nullcontext() if batch.seed is None else seeded(batch.seed, self.device):
            loss = self.loss(flat.module(x), y).mean()
            loss.backward()  # type: ignore[no-untyped-call]
        value = loss.item()
        if self.ridge:
            flat.grad.add_(flat.params, alpha=self.ridge)
            value += self.ridge / 2 * flat.params.dot(flat.params).item()
        return value, flat.grad.cpu().numpy()

    def evaluate(self, params: Array) -> dict[str, float]:
        """`accuracy`, `loss` and `objective`: every sample passes through the model once."""
        return {**self.test_scores(params), "objective": self.objective(params)}

    def test_scores(self, params: Array) -> dict[str, float]:
        """Σ a_i · accuracy, and loss, of client i on its own test samples, over the clients that have any."""
        return {name: self._average(values, self.test) for name, values in self._tested(params).items()}

    def objective(self, params: Array) -> float:
        """F(w) = Σ a_i F_i(w), over all training samples."""
        return self._average(self._objectives(params), self.train)

    def per_client(self, params: Array) -> dict[str, Floats]:
        """What `evaluate` averages, (n,) each: nan where a client has no test samples."""
        return {**self._tested(params), "objective": self._objectives(params)}

    def _tested(self, params: Array) -> dict[str, Floats]:
        if not len(self.test.y):
            return {}
        losses, hits = self._pass(params, self.test)
        scores = {"accuracy": self.test.means(hits)} if self.loss is cross_entropy else {}
        return {**scores, "loss": self.test.means(losses)}

    def _objectives(self, params: Array) -> Floats:
        return self.train.means(self._pass(params, self.train)[0]) + self._penalty(params)

    def _pass(self, params: Array, split: Split) -> tuple[Floats, Floats]:
        """(M,) losses, and whether the largest output is the target's (empty for a loss of your own)."""
        flat = self._flat
        flat.load(params)
        flat.module.eval()
        losses, hits, every = [], [torch.empty(0)], self._linear_outputs(params, split)
        batch = EVALUATION_BATCH if every is None else max(1, len(every))
        with torch.inference_mode(), few_threads(self):
            for start in range(0, len(split.y), batch):
                x, y = (data[start : start + batch] for data in (split.x, split.y))
                outputs = flat.module(x) if every is None else every
                losses.append(self.loss(outputs, y).cpu())
                if self.loss is cross_entropy:
                    hits.append((outputs.argmax(1) == y).cpu())
        return torch.cat(losses).double().numpy(), torch.cat(hits).double().numpy()

    def _linear_outputs(self, params: Array, split: Split) -> Tensor | None:
        """(M, classes) of a linear model, which torch multiplies slowly because it is so thin."""
        if self.dense is None or len(self.dense) != 2 or self.device.type != "cpu" or not load("linear"):
            return None
        inputs, classes = self.dense
        w, bias = params[: inputs * classes].reshape(classes, inputs), params[inputs * classes :]
        return torch.from_numpy(load("linear").outputs(split.x.flatten(1).numpy(), w, bias))

    def _penalty(self, params: Array) -> float:
        return self.ridge / 2 * float(params.astype(np.float64) @ params) if self.ridge else 0.0

    def _average(self, values: Floats, split: Split) -> float:
        known = split.sizes > 0
        a = self.weights[known].astype(np.float64)
        return float(a @ values[known] / a.sum()) if a.sum() > 0 else float("nan")

    def _probe(self) -> bool:
        """Whether the model draws random numbers; refuses one that cannot be trained here."""
        module, ends = self.module(), [0, len(self.train.y) - 1]  # two samples, if need be one twice
        x, y = self.train.x[ends].cpu(), self.train.y[ends].cpu()
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        with seeded(0):
            fresh = torch.get_rng_state()
            outputs = _answer(module, x)
            drew = not torch.equal(fresh, torch.get_rng_state())
        changed = [name for name, buffer in module.named_buffers() if not torch.equal(buffer, before[name])]
        require(
            not changed,
            "training must leave the model's buffers as they are, for only parameters are averaged: use GroupNorm, "
            f"or BatchNorm with track_running_stats=False; got changes in {', '.join(changed)}",
        )
        if self.loss is cross_entropy:
            _check_classes(outputs, self.train, self.test)
        shape = tuple(self.loss(outputs, y).shape)
        require(
            shape == (2,),
            f"a loss must give one value per sample (reduction='none'), (2,) for two of them, got {shape}",
        )
        return drew

    @cached_property
    def optima(self) -> Floats:
        """(n,) F_i*, the least objective of each client alone, where the model is convex."""
        return least_objectives(self.module, self.train, self.loss, self.ridge)

    @cached_property
    def _flat(self) -> Flat:
        return Flat(self.module(), self.slots, self.device)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_flat"}  # made anew where needed


def _split(samples: Samples) -> Split:
    return Split.of(*samples) if isinstance(samples, Split) else Split.joined(samples)


def _check_sizes(sizes: Ids) -> None:
    none = np.flatnonzero(sizes == 0).tolist()
    few = ", ".join(map(str, none[:5])) + (", …" if len(none) > 5 else "")
    require(not none, f"every client must have a training sample, got {len(none)} of {len(sizes)} without: {few}")


def _check_classes(outputs: Tensor, *splits: Split) -> None:
    shape = tuple(outputs.shape)
    require(outputs.ndim == 2, f"the model must give (b, classes) for cross entropy, got {shape}")
    for y in (split.y for split in splits if len(split.y)):
        low, high = y.min().item(), y.max().item()
        ok = not y.is_floating_point() and y.ndim == 1 and low >= 0 and high < shape[1]
        got = f"{y.dtype} {tuple(y.shape)} from {low} to {high}"
        require(ok, f"targets must be class numbers from 0 to {shape[1] - 1}, one per sample, got {got}")


def _answer(module: nn.Module, x: Tensor) -> Tensor:
    try:
        outputs: Tensor = module(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = str(error).splitlines()[0]
        raise BadInput(f"the model must take inputs {tuple(x.shape)} of {x.dtype}, got: {first}") from error
    return outputs


def _usable(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"device must be one that torch can use here, such as cpu, got {name!r}") from error

"""A torch model and in-memory data as a task: flat numpy vectors outside, tensors inside."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedstale.core import Array, BadInput, Floats, Ids, Local, known, normalised, require, shown
from fedstale.kernels import load
from fedstale.rng import stream
from fedstale.tasks.evaluation import Metric, PerSample, Scored, average, client_scores, spans
from fedstale.tasks.flat import Buffers, Flat, changed_buffers, draw, seeded, slots, trained, vector
from fedstale.tasks.layers import dense_sizes, stages
from fedstale.tasks.local import batches_of, drawn, few_threads
from fedstale.tasks.loops import ClientData, Context, read, started
from fedstale.tasks.losses import (
    IGNORED,
    HasLoss,
    Loss,
    answer,
    classifies,
    correct,
    cross_entropy,
    is_cross_entropy,
    is_sum,
    one_value,
    outputs_of,
)  # fmt: skip
from fedstale.tasks.optima import least_objectives
from fedstale.tasks.split import (
    WEIGHTS,
    Data,
    InputData,
    Lazy,
    MapStyle,
    Split,
    Weighting,
    even,
    is_dataset,
    leaves,
    mapped,
)  # fmt: skip

Samples = Split | Lazy | Sequence[tuple[InputData, Data]] | Sequence[MapStyle]
Transform = Callable[[Any, torch.Generator], Any]  # the inputs of a batch -> others in their place
Treatment = Literal["average", "frozen"]  # of the buffers that training changes
OURS = ("accuracy", "loss", "objective")  # scores whose names a metric may not take


class Batch(NamedTuple):
    """The samples of one local step."""

    rows: Tensor  # (b,) of the training split
    seed: int | None  # of what the model itself draws (dropout), if it draws anything


class Supervised:
    """F_i(w) = mean of loss(model(x), y) over client i's training samples, plus ridge/2 ‖w‖².

    `model` is a function without arguments that makes an nn.Module: each run starts from fresh weights,
    drawn from its seed. A module in its place is copied, and every run starts from its weights. Trained
    are the float32 parameters that require a gradient; the others are constants, the same in every run.

    Buffers are constants as well, unless training changes them, as it does the running statistics of
    BatchNorm: with `buffers="average"` the next round begins with their mean over the clients heard from;
    with "frozen" they stay as the model is made, and such layers use them in training too. `evaluate`,
    `per_client` and `model` need the averaged ones: `fs.evaluate(task, s)` passes those of a snapshot on.

    Training and test samples are one (x, y) pair per client, or a Split, which is not copied. A client's
    pair may also be a map-style torch Dataset of (x, y) samples, which are fetched and collated when a
    batch needs them; what it draws from torch comes from the seed of the batch. x may be a tuple of
    tensors, passed to the model by position, or a dict, passed by keyword. `transform(x, generator)`
    changes the inputs of every training batch (augmentation); the generator is seeded by the batch.
    `weights` is one number per client, or "per-client" (all alike, the default) or "per-sample".

    `loss(outputs, targets)` is cross entropy of class numbers by default, for outputs (b, classes) or
    (b, t, classes). Any other, such as `nn.MSELoss()`, may give a value per sample or one for the batch,
    which is then used as it is in training. An evaluation gives it all samples of a client at once, so
    that a mean is a mean over these; a sum (`reduction="sum"`) is divided by their number wherever losses are
    reported. A model that returns an object with `.logits` is trained on these, or on its `.loss` if it
    computes one (Hugging Face, with `labels` among the inputs).

    Accuracy is reported where targets are class numbers and there is an output for each class.
    `metrics` are more scores of the test samples: functions of all outputs and targets of a client that
    return a number, or one per sample.

    `central_test` is one (x, y) pair, or one Dataset, instead of test samples of every client: all of its samples
    count alike. `validation` are samples of the training clients that are used for neither training nor testing;
    `held_out` are those of clients that never train. Their scores are `validation_loss`, `held_out_accuracy`, ….
    """

    averaged: tuple[str, ...] = ()  # buffers that training changes; set only where there are any, so that the
    frozen: tuple[str, ...] = ()  # checksum of a task without them does not depend on how they are treated

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        train: Samples,
        test: Samples | None = None,
        *,
        central_test: tuple[InputData, Data] | MapStyle | None = None,
        validation: Samples | None = None,
        held_out: Samples | None = None,
        weights: npt.ArrayLike | Weighting | str = "per-client",
        loss: Loss = cross_entropy,
        metrics: Mapping[str, Metric] | None = None,
        transform: Transform | None = None,
        buffers: Treatment = "average",
        ridge: float = 0.0,
        device: str = "cpu",
    ) -> None:
        treatments = get_args(Treatment)
        require(buffers in treatments, f"buffers must be {' or '.join(map(repr, treatments))}, got {buffers!r}")
        require(ridge >= 0, f"ridge must be at least 0, got {ridge}")
        metrics, weights = metrics or {}, _weighting(weights)
        ok = isinstance(metrics, Mapping) and all(map(callable, metrics.values()))
        require(ok, f"metrics must be functions by name, such as {{'mae': mae}}, got {shown(metrics)}")
        self.metrics, self.transform = dict(metrics), transform
        taken = [name for name in OURS if name in self.metrics]
        require(not taken, f"metrics must have other names than {', '.join(OURS)}, got {taken}")
        self.loss, self.ridge, self.device = loss, ridge, _usable(device)
        self.train = self._split(train)
        self.samples = self.train.sizes  # (n,)
        self.n = len(self.samples)
        _check_sizes(self.samples)
        a = normalised(weights(self.train.sizes) if callable(weights) else weights, self.n)
        self.weights: Array = a.astype(np.float32)
        require(test is None or central_test is None, "give test or central_test, got both")
        self.test = self._of_clients("test", test)
        self.scored = [Scored("", self.test, self.weights)]
        if central_test is not None:
            self.scored = [Scored("", self._split([central_test]), np.ones(1), False)]
        if validation is not None:
            self.scored.append(Scored("validation_", self._of_clients("validation", validation), self.weights))
        if held_out is not None:
            others = self._split(held_out)
            a = normalised((weights if callable(weights) else even)(others.sizes), len(others.sizes))
            self.scored.append(Scored("held_out_", others, a, False))
        self._make = partial(copy.deepcopy, copy.deepcopy(model)) if isinstance(model, nn.Module) else model
        _check_model(self._make)
        self.slots = slots(self.module())
        self.d = self.slots[-1].where.stop
        self.stochastic = self._probe(buffers) or transform is not None
        flat = self.has_cross_entropy and isinstance(self.train, Split) and isinstance(self.train.x, Tensor)
        # (inputs, hidden …, classes) of a linear model or an MLP, the stages of a small CNN, else None
        self.dense = dense_sizes(self.module(), self.train.x, self.slots) if flat else None
        self.stages = stages(self.module(), self.train.x, self.slots) if flat and self.dense is None else None

    def _split(self, samples: Samples) -> Split | Lazy:
        return _split(samples).to(self.device)

    def _of_clients(self, what: str, samples: Samples | None) -> Split | Lazy:
        """Samples of the clients that train; no rows for each of them if none are given."""
        if samples is None:
            return Split(torch.empty(0), torch.empty(0), np.zeros(self.n + 1, np.int64))
        split = self._split(samples)
        require(len(split.sizes) == self.n, f"{what} must have {self.n} clients, got {len(split.sizes)}")
        return split

    def module(self) -> nn.Module:
        """A fresh copy of the model, in training mode, with the constants that all runs share."""
        with seeded(draw(stream(0, "constants"))):
            return self._in_training(self._make().cpu())

    def _in_training(self, module: nn.Module) -> nn.Module:
        module.train()
        for name in self.frozen:
            module.get_submodule(name.rpartition(".")[0]).training = False
        return module

    def model(self, params: Array, buffers: Floats | None = None) -> nn.Module:
        """The model with these parameters and buffers, on the CPU and in evaluation mode: a copy that is yours."""
        require(np.shape(params) == (self.d,), f"params must be ({self.d},), got {np.shape(params)}")
        module = self.module().eval()
        Buffers(module, self.averaged).load(self._given(buffers))
        for p, slot in zip(trained(module).values(), self.slots, strict=True):
            p.data = torch.from_numpy(np.array(params[slot.where], np.float32).reshape(slot.shape))
        return module

    def init(self, seed: int) -> Array:
        """(d,) fresh parameters, drawn from the seed."""
        with seeded(draw(stream(seed, "init"))):
            return vector(self._make())

    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Batch]:
        start, stop = self.train.offsets[client : client + 2].tolist()
        order, sizes = batches_of(stop - start, local, rng)
        rows = torch.from_numpy(start + order).to(self.device)
        return map(Batch, torch.split(rows, sizes), [draw(rng) if self.stochastic else None for _ in sizes])

    def gradient(self, params: Array, client: int, batch: Batch) -> tuple[float, Array]:
        flat = self._flat
        if not flat.module.training:
            self._in_training(flat.module)
        flat.load(params)
        flat.grad.zero_()
        with nullcontext() if batch.seed is None else seeded(batch.seed, self.device):
            x, y = self._samples(batch)
            loss = self.batch_loss(self._answer(x, y, client), y)
            loss.backward()  # type: ignore[no-untyped-call]
        value = self.reported(loss, len(y)).item()
        if self.ridge:
            flat.grad.add_(flat.params, alpha=self.ridge)
            value += self.ridge / 2 * flat.params.dot(flat.params).item()
        return value, flat.grad.cpu().numpy()

    def _samples(self, batch: Batch) -> tuple[Any, Tensor]:
        """Inputs, transformed, and targets of a batch."""
        x, y = self.train.take(batch.rows)
        if self.transform is not None and batch.seed is not None:
            x = self.transform(x, torch.Generator().manual_seed(draw(stream(batch.seed, "transform"))))
        return x, y

    def run_loop(self, params: Array, client: int, local: Local, context: Context) -> tuple[Array, float | None]:
        """The parameters after a training loop of the user's own, and the loss that it returned, if it did."""

        def batches() -> Iterator[tuple[Any, Tensor]]:
            for batch in drawn(self, client, local, context.draws, context.round):
                if batch.seed is not None:
                    torch.manual_seed(batch.seed)  # what the model draws is as in `gradient`
                yield self._samples(batch)

        module = self._in_training(self.model(params, self.read_buffers()).to(self.device))
        with seeded(draw(context.rng), self.device):
            loss = local.loop()(module, ClientData(self.train, client, batches), context)
        self.load_buffers(Buffers(module, self.averaged).read())
        return read(module, self.slots), started(loss)

    def _answer(self, x: Any, y: Tensor, client: int) -> Any:
        try:
            return answer(self._flat.module, x)
        except ValueError as error:
            if len(y) > 1:
                raise
            way = "use drop_last with epochs, another batch size, or leave out clients with one sample"
            raise BadInput(
                f"the model cannot train client {client} on one sample alone ({error}): {way}"
            ) from error

    def batch_loss(self, said: Any, y: Tensor) -> Tensor:
        """() what a step minimises, of the model's answer and the targets of a batch."""
        return said.loss if self.computes_loss else self.loss(outputs_of(said), y).mean()

    def reported(self, loss: Tensor, size: int) -> Tensor:
        """The loss of a batch per sample."""
        return loss / size if self.sums else loss

    @cached_property
    def initial_buffers(self) -> Floats:
        """(b,) the buffers that are averaged, before round 1."""
        return Buffers(self.module(), self.averaged).read()

    def load_buffers(self, buffers: Floats) -> None:
        """Set the buffers that the next gradient begins with."""
        self._buffers.load(buffers)

    def read_buffers(self) -> Floats:
        """(b,) the buffers as the last gradient left them."""
        return self._buffers.read()

    def evaluate(self, params: Array, buffers: Floats | None = None) -> dict[str, float]:
        """`accuracy`, `loss` and `objective`: every sample passes through the model once."""
        return {**self.test_scores(params, buffers), "objective": self.objective(params, buffers)}

    def test_scores(self, params: Array, buffers: Floats | None = None) -> dict[str, float]:
        """Σ a_i · accuracy, and loss, of client i on its own test samples, over the clients that have any.

        Of a central test set, the mean over its samples. Validation samples and held-out clients are scored too.
        A client whose metric is nan, because it is not defined there, does not count in this metric.
        """
        own = {s.prefix + name for s in self.scored for name in self.metrics}
        return {
            name: average(values, np.where(np.isnan(values) & (name in own), 0, s.split.sizes), s.weights)
            for s in self.scored
            for name, values in self._tested(params, buffers, s).items()
        }

    def objective(self, params: Array, buffers: Floats | None = None) -> float:
        """F(w) = Σ a_i F_i(w), over all training samples."""
        return average(self._objectives(params, buffers), self.train.sizes, self.weights)

    def per_client(self, params: Array, buffers: Floats | None = None) -> dict[str, Floats]:
        """What `evaluate` averages over the clients that train, (n,) each: nan where one has no test samples."""
        own = (self._tested(params, buffers, s) for s in self.scored if s.of_clients)
        return {
            **{name: values for scores in own for name, values in scores.items()},
            "objective": self._objectives(params, buffers),
        }

    def _tested(self, params: Array, buffers: Floats | None, tests: Scored) -> dict[str, Floats]:
        if not tests.split.offsets[-1]:
            return {}
        accuracy: dict[str, PerSample] = {"accuracy": lambda said, y: correct(outputs_of(said), y)}
        found = self._scores(params, buffers, tests.split, accuracy if self.classifies else {}, self.metrics)
        return {tests.prefix + name: values for name, values in found.items()}

    def _objectives(self, params: Array, buffers: Floats | None) -> Floats:
        return self._scores(params, buffers, self.train, {}, {})["loss"] + self._penalty(params)

    def _scores(
        self, params: Array, buffers: Floats | None, split: Split | Lazy,
        each: Mapping[str, PerSample], whole: Mapping[str, Metric],
    ) -> dict[str, Floats]:  # fmt: skip
        """(n,) by name, the loss among them; every sample passes through the model once."""
        self._flat.load(params)
        self.load_buffers(self._given(buffers))
        self._flat.module.eval()
        if self.one_value:
            whole = {"loss": lambda outputs, y: self.reported(self.loss(outputs, y), len(y)), **whole}
        else:
            each = {**each, "loss": self._sample_losses}
        with torch.inference_mode(), few_threads(self), seeded(0) if self.stochastic else nullcontext():
            return client_scores(self._answers(params, split), split.offsets, each, whole)

    def _sample_losses(self, said: Any, y: Tensor) -> Tensor:
        """(b,) the loss of each sample; if the model computes it, its mean over the batch."""
        if self.computes_loss:
            return said.loss.expand(len(y))  # type: ignore[no-any-return]
        losses = (cross_entropy if self.has_cross_entropy else self.loss)(outputs_of(said), y)
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)

    def _answers(self, params: Array, split: Split | Lazy) -> Iterator[tuple[Any, Tensor]]:
        """What the model says of all samples in their order, and their targets, batch by batch."""
        every = self._compiled_outputs(params, split)
        if every is not None:
            yield every, split.y
            return
        for start, stop in spans(split.offsets, across=not self.computes_loss):
            x, y = split.span(start, stop)
            yield answer(self._flat.module, x), y

    def _compiled_outputs(self, params: Array, split: Split | Lazy) -> Tensor | None:
        """(M, classes) of a linear model, which torch multiplies slowly because it is so thin, or a small CNN."""
        if self.device.type != "cpu" or isinstance(split, Lazy):
            return None
        if self.dense and len(self.dense) == 2 and (linear := load("linear")):
            inputs, classes = self.dense
            w, bias = params[: inputs * classes].reshape(classes, inputs), params[inputs * classes :]
            return torch.from_numpy(linear.outputs(split.x.flatten(1).numpy(), w, bias))
        if self.stages and self._network:
            return torch.from_numpy(self._network.outputs(params, split.x.flatten(1).numpy()))
        return None

    def _penalty(self, params: Array) -> float:
        return self.ridge / 2 * float(params.astype(np.float64) @ params) if self.ridge else 0.0

    def _probe(self, treatment: Treatment) -> bool:
        """Whether the model draws random numbers, and which buffers it changes; refuses what cannot be trained."""
        module, ends = self.module(), [0, self.train.offsets[-1] - 1]  # two samples, if need be one twice
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        with seeded(0):
            fresh = torch.get_rng_state()
            x, y = self.train.take(torch.tensor(ends, device=self.device))
            said, y = _said(module, mapped(Tensor.cpu, x)), y.cpu()
            drew = not torch.equal(fresh, torch.get_rng_state())
        changed = changed_buffers(module, before)
        if changed and treatment == "frozen":
            told = ", ".join(changed)
            require(not self.frozen, f"frozen buffers must not change in evaluation mode, got changes in {told}")
            self.frozen = changed
            return self._probe(treatment)
        if changed:
            self.averaged = changed
        self._know(said, y)
        return drew

    def _given(self, buffers: Floats | None) -> Floats:
        """The buffers, checked; a model that has none to average needs none."""
        b, some = len(self.initial_buffers), ", ".join(self.averaged[:2])
        needed = f"training changes buffers of this model ({some}, …), which must be given beside the parameters"
        require(buffers is not None or b == 0, f"{needed}: use fs.evaluate(task, s), or give s.checkpoint.buffers")
        given = self.initial_buffers if buffers is None else np.asarray(buffers, np.float64)
        require(given.shape == (b,), f"buffers must be ({b},), got {given.shape}")
        return given

    def _know(self, said: Any, y: Tensor) -> None:
        """Find out what the loss and the accuracy of such answers are; refuses what cannot be trained."""
        outputs, self.computes_loss = outputs_of(said).detach(), isinstance(said, HasLoss) and said.loss is not None
        self.has_cross_entropy = not self.computes_loss and is_cross_entropy(self.loss, outputs, y)
        if self.has_cross_entropy:
            _check_classes(outputs, self.train, *(s.split for s in self.scored))
        self.classifies = classifies(outputs, y)
        self.one_value = not self.computes_loss and one_value(self.loss, outputs, y) and not self.has_cross_entropy
        self.sums = self.one_value and is_sum(self.loss, outputs, y)

    @cached_property
    def optima(self) -> Floats:
        """(n,) F_i*, the least objective of each client alone, where the model is convex."""

        def loss(said: Any, y: Tensor) -> Tensor:
            return self.reported(self.batch_loss(said, y), len(y))

        return least_objectives(self.module, self.train, loss, self.ridge)

    @cached_property
    def _flat(self) -> Flat:
        return Flat(self.module(), self.slots, self.device)

    @cached_property
    def _buffers(self) -> Buffers:
        return Buffers(self._flat.module, self.averaged)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, d={self.d})"

    @cached_property
    def _network(self) -> Any:
        """Compiled loops over the stages of a small CNN, or None where there are none."""
        compiled = load("convolutional")
        return compiled.Network(self.stages) if compiled else None

    def __getstate__(self) -> dict[str, Any]:
        working = ("_flat", "_network", "_buffers", "initial_buffers")  # made anew where needed
        return {name: value for name, value in self.__dict__.items() if name not in working}


def _split(samples: Samples) -> Split | Lazy:
    if isinstance(samples, Split):
        return Split.of(*samples)
    if isinstance(samples, Lazy):
        return samples
    if len(samples) and all(map(is_dataset, samples)):
        return Lazy(tuple(samples), np.cumsum([0, *map(len, samples)]), torch.device("cpu"))
    return Split.joined(samples)  # type: ignore[arg-type]


def _weighting(weights: npt.ArrayLike | Weighting | str) -> npt.ArrayLike | Weighting:
    return WEIGHTS[known(weights, WEIGHTS, "weights")] if isinstance(weights, str) else weights


def _check_model(make: Any) -> None:
    """Refuse what does not make an nn.Module when it is called without arguments."""
    sentence = "model must be an nn.Module, or a function without arguments that makes one, got"
    require(callable(make), f"{sentence} {shown(make)}")
    try:
        with seeded(0):
            made = make()
    except TypeError as error:
        raise BadInput(f"{sentence}: {error}") from error
    require(isinstance(made, nn.Module), f"{sentence} one that makes {shown(made)}")


def _check_sizes(sizes: Ids) -> None:
    none = np.flatnonzero(sizes == 0).tolist()
    few = ", ".join(map(str, none[:5])) + (", …" if len(none) > 5 else "")
    require(not none, f"every client must have a training sample, got {len(none)} of {len(sizes)} without: {few}")


def _check_classes(outputs: Tensor, *splits: Split | Lazy) -> None:
    shape = tuple(outputs.shape)
    for y in (split.y for split in splits if isinstance(split, Split) and len(split.y)):
        ok = outputs.ndim == 2 or outputs.ndim == y.ndim + 1 > 2
        require(ok, f"the model must give (b, classes) for cross entropy, or (b, t, classes), got {shape}")
        counted = y if y.ndim == 1 else y[y != IGNORED]
        low, high = (counted.min().item(), counted.max().item()) if len(counted) else (0, 0)
        ok = not y.is_floating_point() and y.ndim == outputs.ndim - 1 and low >= 0 and high < shape[-1]
        got = f"{y.dtype} {tuple(y.shape)} from {low} to {high}"
        require(ok, f"targets must be class numbers from 0 to {shape[-1] - 1}, one per sample, got {got}")


def _said(module: nn.Module, x: Any) -> Any:
    try:
        return answer(module, x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shapes, types = (
            ", ".join(str(f(v)) for v in leaves(x)) for f in (lambda v: tuple(v.shape), lambda v: v.dtype)
        )
        first = str(error).splitlines()[0]
        raise BadInput(f"the model must take inputs {shapes} of {types}, got: {first}") from error


def _usable(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"device must be one that torch can use here, such as cpu, got {name!r}") from error

"""A torch model and in-memory data as a task: flat numpy vectors outside, tensors inside."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedstale.core import NEW, Array, Clients, DeviceArray, Floats, Ids, Local, State, normalised, require, shown
from fedstale.core.rng import stream
from fedstale.engines.kernels.gates import Gates
from fedstale.tasks import checks, evaluation, flat, split, unread
from fedstale.tasks.layers import dense_sizes, gates, stages
from fedstale.tasks.local import batches_of, drawn
from fedstale.tasks.loops import ClientData, Context, read, started
from fedstale.tasks.losses import Loss, cross_entropy, outputs_of
from fedstale.tasks.optima import least_objectives
from fedstale.tasks.split import Data, InputData, Lazy, MapStyle, Samples, Split, Weighting

Transform = Callable[[Any, torch.Generator], Any]  # the inputs of a batch -> others in their place
Treatment = Literal["average", "local", "frozen"]  # of the buffers that training changes
Precision = Literal["float32", "bfloat16"]  # of the products in training
Aggregate = Literal["cpu", "device"]  # where the server sums and remembers updates
NO_STRANGERS = (
    "personal parts are scored on the samples of their own clients: give test, got central_test or held_out"
)


class Batch(NamedTuple):
    """The samples of one local step."""

    rows: Tensor  # (b,) of the training split
    seed: int | None  # of what the model itself draws (dropout), if it draws anything


class Supervised:
    """F_i(w) = mean of loss(model(x), y) over client i's training samples, plus ridge/2 ‖w‖².

    `model` is a function without arguments that makes an nn.Module: each run starts from fresh weights,
    drawn from its seed. A module in its place is working, and every run starts from its weights. Trained
    are the float32 parameters that require a gradient; the others are constants, the same in every run.

    Buffers are constants as well, unless training changes them, as it does the running statistics of
    BatchNorm: with `buffers="average"` the next round begins with their mean over the clients heard from;
    with "frozen" they stay as the model is made, and such layers use them in training too. With "local"
    (FedBN) each client keeps them to itself, with the parameters of its BatchNorm and InstanceNorm layers.
    `personal` names more layers or parameters that stay with the client, such as a head. `evaluate`,
    `per_client` and `model` need all these: `fs.evaluate(task, s)` passes those of a snapshot on.

    Training and test samples are one (x, y) pair per client, or a Split, which is not working. A client's
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
    `held_out` are those of clients that never train. Their scores are `validation_loss`,
    `held_out_accuracy`, …. `names` are the clients' own, for tables and pages, and a recorded participation with
    names is matched by them.

    On a `device` such as "cuda" samples and model stay there. With `precision="bfloat16"` torch's autocast computes
    the products of training in that type, which is faster on most GPUs; parameters and scores are float32.
    With `aggregate="device"` updates stay there too, and the server sums and remembers them there, in float32.
    """

    scores_training = True  # whether an evaluation has the objective; set only in a copy that is narrowed
    channels_last = False  # whether gradients see images in this memory layout; set only in a copy, see shortcuts
    waiting: tuple[str, ...] = ()  # linear layers that leave out what is not read; set only in a copy, too
    averaged: tuple[str, ...] = ()  # buffers that training changes; set only where there are any, so that the
    frozen: tuple[str, ...] = ()  # checksum of a task without them does not depend on how they are treated
    own_buffers: tuple[str, ...] = ()  # those that stay with the client, and
    personal: tuple[str, ...] = ()  # parameters that do
    names: tuple[str, ...] = ()  # of the clients; like those above, set only where there are any
    note = ""  # how the samples were prepared, in words
    precision: Precision = "float32"
    aggregate: Aggregate = "cpu"

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
        metrics: Mapping[str, evaluation.Metric] | None = None,
        transform: Transform | None = None,
        buffers: Treatment = "average",
        personal: Sequence[str] = (),
        ridge: float = 0.0,
        device: str = "cpu",
        precision: Precision = "float32",
        aggregate: Aggregate = "cpu",
        names: Sequence[str] = (),
        note: str = "",
    ) -> None:
        words = (("buffers", buffers, Treatment), ("precision", precision, Precision))
        for what, asked, allowed in (*words, ("aggregate", aggregate, Aggregate)):
            choices = " or ".join(map(repr, get_args(allowed)))
            require(asked in get_args(allowed), f"{what} must be {choices}, got {asked!r}")
        if precision != "float32":
            self.precision = precision
        if aggregate != "cpu":
            self.aggregate = aggregate
        ok = isinstance(ridge, int | float) and ridge >= 0
        require(ok, f"ridge must be at least 0, got {shown(ridge)}")
        metrics, weights = metrics or {}, split.weighting(weights)
        checks.check_metrics(metrics)
        self.metrics, self.transform = dict(metrics), transform
        self.loss, self.ridge, self.device = loss, ridge, checks.usable(device)
        self.train = split.split_of(train, self.device)
        self.samples = self.train.sizes  # (n,)
        self.n = len(self.samples)
        checks.check_sizes(self.samples)
        if given := tuple(names) or split.client_names(train):
            self.names = checks.checked_names(given, self.n)
        if note:
            self.note = note
        a = normalised(weights(self.train.sizes) if callable(weights) else weights, self.n)
        self.weights: Array = a.astype(np.float32)
        require(test is None or central_test is None, "give test or central_test, got both")
        self.test = split.of_clients("test", test, self.n, self.device)
        self.scored = split.scored_samples(
            self.test, central_test, validation, held_out, self.weights, weights, self.device
        )
        ok = not metrics or any(s.split.offsets[-1] for s in self.scored)
        require(ok, "metrics are scores of test samples: give test, central_test, validation or held_out, got none")
        if transform is not None:
            checks.check_transform(transform, self.train)
        self._make = partial(copy.deepcopy, copy.deepcopy(model)) if isinstance(model, nn.Module) else model
        checks.check_model(self._make)
        if personal or buffers == "local":
            require(all(s.of_clients for s in self.scored), NO_STRANGERS)
            self.personal = flat.personal_names(self.module(), personal, norms=buffers == "local")
        self.slots = flat.slots(self.module(), self.personal)
        self.d = max(slot.where.stop for slot in self.slots if slot.name not in self.personal)
        self.stochastic = self._probe(buffers) or transform is not None
        ok = buffers != "local" or self.keeps_own
        require(ok, "buffers 'local' needs layers such as BatchNorm, got a model without running statistics")
        known = self.has_cross_entropy and isinstance(self.train, Split) and isinstance(self.train.x, Tensor)
        known = known and not self.personal
        # (inputs, hidden …, classes) of a linear model or an MLP, the stages of a small CNN, else None
        self.dense = dense_sizes(self.module(), self.train.x, self.slots) if known else None
        self.stages = stages(self.module(), self.train.x, self.slots) if known and self.dense is None else None

    @cached_property
    def gates(self) -> Gates | None:
        """What a small recurrent network is made of, if the model is one; on first use: no key counts it."""
        if self.personal or not (self.has_cross_entropy and isinstance(self.train, Split)):
            return None
        numbers = isinstance(self.train.x, Tensor) and not self.train.x.is_floating_point()
        return gates(self.module(), self.train, self.slots) if numbers else None

    def module(self) -> nn.Module:
        """A fresh copy of the model, in training mode, with the constants that all runs share."""
        with flat.seeded(flat.draw(stream(0, "constants"))):
            return flat.in_training(self._make().cpu(), self.frozen)

    def model(self, params: Array, buffers: Floats | None = None, state: State | None = None) -> nn.Module:
        """The model with these parameters and buffers, on the CPU and in evaluation mode: a copy that is yours.

        With personal parts it is that of a client with this `state`, such as `s.checkpoint.clients[0]`.
        """
        self._check(params)
        own: State = {"personal": params[:0], "buffers": np.zeros(0)}
        own = self._own_part(state) if self.keeps_own else own
        return self._filled(flat.joined(params, own), self._given(buffers), own["buffers"]).eval()

    def _check(self, params: Array) -> None:
        size = params.shape if isinstance(params, np.ndarray) else None
        require(
            size == (self.d,), f"params must be an array ({self.d},), such as s.params, got {size or shown(params)}"
        )

    def _filled(self, whole: Array, averaged: Floats, own: Floats) -> nn.Module:
        """A fresh copy of the model with a client's whole vector, the buffers that are sent, and its own."""
        module = flat.filled(self.module(), self.slots, whole)
        flat.Buffers(module, self.averaged).load(averaged)
        flat.Buffers(module, self.own_buffers).load(own)
        return module

    def init(self, seed: int) -> Array:
        """(d,) fresh parameters, drawn from the seed."""
        return self._drawn(seed)[: self.d]

    def _drawn(self, seed: int) -> Array:
        with flat.seeded(flat.draw(stream(seed, "init"))):
            return flat.vector(self._make(), self.slots)

    @property
    def aggregates_at(self) -> DeviceArray | None:
        """An array of the device, if updates stay there."""
        return DeviceArray(torch.empty(0, device=self.device)) if self.aggregate == "device" else None

    @property
    def keeps_own(self) -> bool:
        """Whether clients keep a part of the model to themselves."""
        return bool(self.personal or self.own_buffers)

    def initial_state(self, seed: int) -> State:
        """The personal parameters and buffers of a client that has not trained yet, drawn from the seed."""
        return {
            "personal": self._drawn(seed)[self.d :],
            "buffers": flat.Buffers(self.module(), self.own_buffers).read(),
        }

    def enter(self, params: Array, state: State | None) -> Array:
        """The parameters, and those of a client behind them; its own buffers are loaded."""
        own = self.initial_state(0) if state is None else self._own_part(state)
        self.working.own.load(own["buffers"])
        return flat.joined(params, own)

    def leave(self, whole: Array) -> dict[str, Any]:
        """The personal parameters and buffers of the client that was trained last."""
        return {"personal": whole[self.d :].copy(), "buffers": self.working.own.read()}

    def _own_part(self, state: State | None) -> State:
        return flat.own_part(state, (*self.personal, *self.own_buffers))

    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Batch]:
        start, stop = self.train.offsets[client : client + 2].tolist()
        order, sizes = batches_of(stop - start, local, rng)
        rows = torch.from_numpy(start + order)  # datasets fetch samples by number, on the CPU
        rows = rows.to(self.device) if isinstance(self.train, Split) else rows
        return map(Batch, torch.split(rows, sizes), [flat.draw(rng) if self.stochastic else None for _ in sizes])

    def gradient(self, params: Array, client: int, batch: Batch) -> tuple[float, Array]:
        """Loss and gradient (d,) of one batch; the next call overwrites the gradient, so `copy` what you keep."""
        working = self.working.flat
        working.load(params)
        value = self.backward(client, batch).item()
        if self.ridge:
            value += self.ridge / 2 * working.params.dot(working.params).item()
        return value, working.grad.cpu().numpy()

    def backward(self, client: int, batch: Batch) -> Tensor:
        """() the loss of a batch at the parameters of the working copy, whose gradient has that of the ridge, too.

        Nothing is copied from the device.
        """
        working = self.working.flat
        if not working.module.training:
            flat.in_training(working.module, self.frozen)
        working.grad.zero_()
        with nullcontext() if batch.seed is None else flat.seeded(batch.seed, self.device):
            x, y = self._samples(batch)
            x = x.contiguous(memory_format=torch.channels_last) if self.channels_last else x
            with self.autocast():
                who = self.names[client] if self.names else str(client)
                loss = self.batch_loss(checks.training_answer(working.module, x, len(y), who), y)
            loss.backward()  # type: ignore[no-untyped-call]
        if self.ridge:
            working.grad.add_(working.params, alpha=self.ridge)
        return self.reported(loss.detach(), len(y))

    def autocast(self) -> AbstractContextManager[object]:
        """torch's mixed precision, if it is asked for."""
        kind = torch.bfloat16
        return nullcontext() if self.precision == "float32" else torch.autocast(self.device.type, kind)

    def _samples(self, batch: Batch) -> tuple[Any, Tensor]:
        """Inputs, transformed, and targets of a batch."""
        x, y = self.train.take(batch.rows)
        if self.transform is not None and batch.seed is not None:
            seed = flat.draw(stream(batch.seed, "transform"))
            x = self.transform(x, torch.Generator(self.device).manual_seed(seed))
        return x, y

    def run_loop(self, params: Array, client: int, local: Local, context: Context) -> tuple[Array, float | None]:
        """The parameters after a training loop of the user's own, and the loss that it returned, if it did."""

        def batches() -> Iterator[tuple[Any, Tensor]]:
            for batch in drawn(self, client, local, context.draws, context.round):
                if batch.seed is not None:
                    torch.manual_seed(batch.seed)  # what the model draws is as in `gradient`
                yield self._samples(batch)

        module = self._filled(params, self.read_buffers(), self.working.own.read()).to(self.device)
        if self.waiting:
            unread.wait(module, self.waiting)
        with flat.seeded(flat.draw(context.rng), self.device), self.autocast():
            loss = local.loop()(module, ClientData(self.train, client, batches), context)
        self.load_buffers(flat.Buffers(module, self.averaged).read())
        self.working.own.load(flat.Buffers(module, self.own_buffers).read())
        return read(module, self.slots), started(loss)

    def batch_loss(self, said: Any, y: Tensor) -> Tensor:
        """() what a step minimises, of the model's answer and the targets of a batch."""
        return said.loss if self.computes_loss else self.loss(outputs_of(said), y).mean()

    def reported(self, loss: Tensor, size: int) -> Tensor:
        """The loss of a batch per sample."""
        return loss / size if self.sums else loss

    @cached_property
    def initial_buffers(self) -> Floats:
        """(b,) the buffers that are averaged, before round 1."""
        return flat.Buffers(self.module(), self.averaged).read()

    def layout(self) -> dict[str, list[dict[str, Any]]]:
        """Names, shapes and types of what the flat vectors of parameters and buffers are made of."""
        module = self.module()
        shared = sorted((s for s in self.slots if s.where.stop <= self.d), key=lambda s: s.where.start)
        return flat.layout(shared, {name: module.get_buffer(name) for name in self.averaged})

    @cached_property
    def labels(self) -> list[str]:
        """Of each client its most frequent labels, in words; nothing where samples have none, or are fetched."""
        known = self.classifies and isinstance(self.train, Split) and self.train.y.ndim == 1
        return self.train.labels(self.class_names) if known and isinstance(self.train, Split) else []

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes. They change no number: as a cached property they are no part of the checksum."""
        return ()

    @property
    def fetched(self) -> bool:
        """Whether samples are fetched when they are needed, which takes longer than a small model does."""
        return isinstance(self.train, Lazy)

    def evaluated_samples(self, training: bool) -> int:
        """Samples of one evaluation, with or without those of training; half of them, for they only pass forward.

        A linear model trains as fast as it is evaluated.
        """
        passed = sum(s.split.sizes.sum() for s in self.scored) + (self.samples.sum() if training else 0)
        linear = self.dense is not None and len(self.dense) == 2
        return int(passed) if linear else int(passed) // 2

    def narrowed(self, clients: Ids | None, training: bool) -> "Supervised":
        """A copy to evaluate on these clients, all if None; without `training` it has no objective."""
        some = copy.copy(self)  # without its working copies of the model, see __getstate__
        some.scores_training = training
        if clients is not None:
            some.train, some.test = self.train.some(clients), self.test.some(clients)
            some.weights = self.weights[clients]
            some.samples, some.n = some.train.sizes, len(clients)
            some.scored = [
                s._replace(split=s.split.some(clients), weights=some.weights) if s.of_clients else s
                for s in self.scored
            ]
        require(training or any(s.split.offsets[-1] for s in some.scored), 'evaluate = "test" needs test samples')
        return some

    def load_buffers(self, buffers: Floats) -> None:
        """Set the buffers that the next gradient begins with."""
        self.working.averaged.load(buffers)

    def read_buffers(self) -> Floats:
        """(b,) the buffers as the last gradient left them."""
        return self.working.averaged.read()

    def evaluate(
        self, params: Array, buffers: Floats | None = None, states: Clients | None = None
    ) -> dict[str, float]:
        """`accuracy`, `loss` and `objective`: every sample passes through the model once."""
        objective = {"objective": self.objective(params, buffers, states)} if self.scores_training else {}
        return {**self.test_scores(params, buffers, states), **objective}

    def test_scores(
        self, params: Array, buffers: Floats | None = None, states: Clients | None = None
    ) -> dict[str, float]:
        """Σ a_i · accuracy, and loss, of client i on its own test samples, over the clients that have any.

        Of a central test set, the mean over its samples. Validation samples and held-out clients are scored too.
        A client whose metric is nan, because it is not defined there, does not count in this metric.
        """
        return self._evaluation(params, buffers, states).test_scores()

    def objective(self, params: Array, buffers: Floats | None = None, states: Clients | None = None) -> float:
        """F(w) = Σ a_i F_i(w), over all training samples."""
        return evaluation.average(
            self._evaluation(params, buffers, states).objectives(), self.train.sizes, self.weights
        )

    def per_client(
        self, params: Array, buffers: Floats | None = None, states: Clients | None = None
    ) -> dict[str, Floats]:
        """What `evaluate` averages over the clients that train, (n,) each: nan where one has no test samples."""
        model = self._evaluation(params, buffers, states)
        own = (model.tested(s) for s in self.scored if s.of_clients)
        return {
            **{name: values for scores in own for name, values in scores.items()},
            "objective": model.objectives(),
        }

    def _evaluation(self, params: Array, buffers: Floats | None, states: Clients | None) -> evaluation.Evaluation:
        """That of the model with these parameters and buffers, and with what clients keep of it."""
        self._check(params)
        every = partial(self._of_client, params, states or Clients()) if self.keeps_own else params
        return evaluation.Evaluation(self, every, partial(self._answers, every, buffers))

    def _of_client(self, params: Array, states: Clients, client: int) -> Array:
        """The whole vector of a client; its own buffers are loaded."""
        return self.enter(params, self._own_part(states.get(client, states.get(NEW))))

    def _answers(
        self, params: evaluation.Vectors, buffers: Floats | None, split: Split | Lazy
    ) -> Iterator[tuple[Any, Tensor]]:
        """What the model says of all samples in their order, and their targets, batch by batch."""
        self.load_buffers(self._given(buffers))
        if self.working.flat.module.training:
            self.working.flat.module.eval()
        dense = self.dense is not None and self.d < evaluation.DENSE
        return evaluation.answers(self.working.flat, params, split, not self.computes_loss, self._compiled, dense)

    def _probe(self, treatment: Treatment) -> bool:
        """Whether the model draws random numbers, and which buffers it changes; refuses what cannot be trained."""
        trial = checks.tried(self.module(), self.train, self.device)
        if trial.changed and treatment == "frozen":
            self.frozen = trial.changed
            trial = checks.tried(self.module(), self.train, self.device)
            told = ", ".join(trial.changed)
            require(not told, f"frozen buffers must not change in evaluation mode, got changes in {told}")
        elif trial.changed and treatment == "local":
            self.own_buffers = trial.changed
        elif trial.changed:
            self.averaged = trial.changed
        kind = checks.kind_of(self.loss, trial, [self.train, *(s.split for s in self.scored)])
        self.computes_loss, self.has_cross_entropy, self.classifies, self.one_value, self.sums = kind
        return trial.drew

    def _given(self, buffers: Floats | None) -> Floats:
        return flat.given_buffers(buffers, self.averaged, self.initial_buffers)

    def root(self, samples: int) -> Callable[[Array], Array]:
        """The gradients of copies of so many training samples, by label, for a defence."""
        from fedstale.tasks.root import root_of

        return root_of(self, samples)

    @cached_property
    def optima(self) -> Floats:
        """(n,) F_i*, the least objective of each client alone, where the model is convex."""

        def loss(said: Any, y: Tensor) -> Tensor:
            return self.reported(self.batch_loss(said, y), len(y))

        return least_objectives(self.module, self.train, loss, self.ridge)

    @cached_property
    def working(self) -> flat.WorkingCopy:
        module = self.module()
        if self.waiting:
            unread.wait(module, self.waiting)
        return flat.WorkingCopy(module, self.slots, self.device, averaged=self.averaged, own=self.own_buffers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, d={self.d})"

    @cached_property
    def _compiled(self) -> evaluation.Outputs | None:
        return evaluation.compiled_outputs(self.dense, self.stages) if self.device.type == "cpu" else None

    def __getstate__(self) -> dict[str, Any]:
        working = ("working", "_compiled", "initial_buffers", "labels")  # made anew where needed
        return {name: value for name, value in self.__dict__.items() if name not in working}

"""How a client trains: the settings of local training, and the record of the work that was done."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedstale.core.parts import (
    BadInput,
    Count,
    NotNegativeFinite,
    PositiveFinite,
    Range,
    imported,
    keep,
    part,
    require,
    shown,
)

__all__ = ["Local", "Schedule", "StepSchedule", "Work", "Workload"]

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
OPTIMIZERS = ("sgd", "adam", "adamw")
OPTIMIZER = "'sgd', 'adam', 'adamw', \"package.module:Class\" or a table with one of these as kind"
OURS = ("optimizer", "momentum", "nesterov", "weight_decay", "clip_norm", "prox")  # what our training loop does
STEPS = 5  # of a round, if neither steps nor epochs are given


@runtime_checkable
class Schedule(Protocol):
    """How the learning rate changes from round to round."""

    def factor(self, t: int) -> float:
        """What the learning rate of round t is multiplied by."""


@runtime_checkable
class StepSchedule(Schedule, Protocol):
    """A schedule whose factor also changes from one local step to the next."""

    def step_factor(self, t: int, k: int) -> float:
        """What the learning rate of local step k = 0, 1, … of round t is multiplied by."""


@runtime_checkable
class Workload(Protocol):
    """How many local steps each client takes in each round."""

    def steps(self, client: int, t: int, rng: np.random.Generator) -> int:
        """The steps of a client in round t, at least 1; `rng` is the client's own stream of the round."""


class Work(NamedTuple):
    """How much each of m clients has trained in a round."""

    steps: Ids  # (m,) local steps
    samples: Ids  # (m,) samples that these steps used; a sample that was used twice counts twice
    rates: Floats  # (m,) sum of the learning rates of the steps: -update / rates is a mean gradient of plain SGD

    def of(self, keep: Any) -> "Work":
        """The work of some of the clients."""
        return Work(*(values[keep] for values in self))


@part
class Local:
    """Local training: what a client does with the parameters that it is sent, and a fresh optimizer every round.

    `optimizer` is "sgd", "adam", "adamw", an optimizer class of torch as "package.module:Class", or a table with
    one of these as `kind` and its settings; a function (params, lr=…) in Python. `train` is a training loop of
    your own, a function (model, data, context), in the place of ours: the optimizer is then its own affair. Plain
    SGD needs no torch.
    """

    lr: PositiveFinite  # η_c, the client learning rate, above 0
    steps: Count | None = None  # K, local steps per round, at least 1; 5 unless epochs or work are given
    batch: Count = 32  # samples of a step
    decay: NotNegativeFinite = 0.0  # the rate in round t is lr / (1 + decay · t)
    prox: NotNegativeFinite = 0.0  # FedProx's μ: adds μ (w - w_sent) to every gradient
    epochs: Count | None = None  # instead of steps: passes over the client's samples
    drop_last: bool = False  # with epochs: leave out the samples that do not fill a batch
    momentum: Annotated[float, Range("at least 0 and below 1")] = 0.0  # of optimizer sgd, in [0, 1)
    nesterov: bool = False  # Nesterov's momentum
    weight_decay: NotNegativeFinite = 0.0  # adds weight_decay · w to every gradient (not in adamw)
    clip_norm: PositiveFinite | None = None  # longest gradient; a longer one is scaled down
    optimizer: str | Mapping[str, Any] | Callable[..., Any] = "sgd"  # sgd, adam, adamw or "torch.optim:RMSprop"
    schedule: Schedule | Callable[[int], float] | None = None  # factor of the learning rate in each round
    work: Workload | Callable[[int, int, np.random.Generator], int] | None = None  # steps of each client
    train: str | Callable[..., Any] | None = None  # a training loop of your own: a function, or "module:name"

    def __post_init__(self) -> None:
        self._check_together()
        if self.steps is None and self.epochs is None and self.work is None:
            keep(self, "steps", STEPS)

    def __repr__(self) -> str:
        """The settings that are not the default."""
        values = [(f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self)]
        return f"Local({', '.join(f'{name}={value!r}' for name, value, default in values if value != default)})"

    def _check_together(self) -> None:
        """Refuse settings that contradict each other."""
        given = [name for name in ("steps", "epochs", "work") if getattr(self, name) is not None]
        require(len(given) < 2, f"{' and '.join(given)} contradict each other: give one of them")
        require(self.epochs is not None or not self.drop_last, "drop_last needs epochs: steps use full batches")
        require(self.momentum > 0 or not self.nesterov, "nesterov needs a momentum above 0, got 0")
        for name, value in (("schedule", self.schedule), ("work", self.work)):
            require(not isinstance(value, type), f"{name} must be an object or a function, got the class {value}")
        kind = self.optimizer.get("kind") if isinstance(self.optimizer, Mapping) else self.optimizer
        own = callable(kind) or (isinstance(kind, str) and ":" in kind)
        require(own or kind in OPTIMIZERS, f"optimizer must be {OPTIMIZER}, got {self.optimizer!r}")
        if self.train is not None:
            self._check_loop()
        sgd = not self.momentum or self.optimizer == "sgd"
        require(sgd, f"momentum is a setting of optimizer 'sgd', got {self.optimizer!r}; give its own settings")

    def _check_loop(self) -> None:
        """Refuse settings of our training loop beside a loop of the user's own, and one that cannot be called."""
        default = {f.name: f.default for f in dataclasses.fields(Local)}
        given = [name for name in OURS if getattr(self, name) != default[name]]
        require(not given, f"train is a loop of its own and must do these itself, got {' and '.join(given)}")
        named = isinstance(self.train, str) and ":" in self.train
        ok = named or callable(self.train)
        require(ok, f'train must be a function or its name "package.module:function", got {self.train!r}')
        if not named:
            self.loop()

    def loop(self) -> Callable[..., Any]:
        """The function of `train`, imported if it was given by its name."""
        found: Any = imported(self.train, "train") if isinstance(self.train, str) else self.train
        try:
            inspect.signature(found).bind("model", "data", "context")
        except (TypeError, ValueError) as error:
            name = found.__name__ if inspect.isroutine(found) else shown(found)
            raise BadInput(f"train must be a function of (model, data, context), got {name}: {error}") from None
        return cast(Callable[..., Any], found)

    @property
    def plain(self) -> bool:
        """Whether a step is w - rate · gradient and nothing else."""
        more = self.momentum or self.weight_decay or self.clip_norm or self.train or self.by_step
        return self.optimizer == "sgd" and not more

    @property
    def by_step(self) -> bool:
        """Whether the rate changes from one local step to the next."""
        return self.schedule is not None and isinstance(self.schedule, StepSchedule)  # to ask is slow

    def rate(self, t: int, k: int = 0) -> float:
        """The learning rate of round t, at its local step k = 0, 1, …."""
        rate = self.lr / (1.0 + self.decay * t)
        if self.schedule is None:
            return rate
        if isinstance(self.schedule, StepSchedule):
            factor = self.schedule.step_factor(t, k)
        else:
            factor = self.schedule.factor(t) if isinstance(self.schedule, Schedule) else self.schedule(t)
        ok = isinstance(factor, int | float | np.number) and 0 <= factor < math.inf
        require(ok, f"a schedule's factor must be at least 0 and finite, got {factor!r} in round {t}")
        return rate * float(factor)

    def rates(self, t: int, steps: Ids) -> Floats:
        """(m,) the sum of the rates of so many steps in round t."""
        if not self.by_step:
            return np.asarray(steps * np.float64(self.rate(t)))
        sums = np.cumsum([0.0, *(self.rate(t, k) for k in range(int(steps.max(initial=0))))])
        return np.asarray(sums[steps])

    def alone(self, client: int, t: int, rng: np.random.Generator) -> "Local":
        """The settings of one client in round t: with the steps that `work` gives it."""
        if self.work is None:
            return self
        count = self.work.steps if isinstance(self.work, Workload) else self.work
        steps = int(count(client, t, rng))
        got = f"{steps} for client {client} in round {t}"
        require(steps >= 1, f"a client's work must be at least 1 step, got {got}")
        return dataclasses.replace(self, steps=steps, work=None)

    def per_epoch(self, sizes: Ids) -> Ids:
        """(m,) the batches of one epoch of clients with so many samples, at least one."""
        b = np.minimum(self.batch, sizes)
        return sizes // b if self.drop_last else -(-sizes // b)

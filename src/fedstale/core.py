"""The words of the package: what a round is, and what each part must be able to do.

A part is a frozen dataclass whose fields are its settings, with pure methods over explicit state.
Parts are protocols: your own inherits nothing. Shapes: n clients, m heard from, d parameters.
"""

import collections.abc
import dataclasses
import difflib
import functools
import os
import reprlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar, dataclass_transform, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
State = Any  # plain arrays and numbers in tuples, lists, dicts or dataclasses
Belief = Any  # the same, of an estimator
Streams = Callable[..., np.random.Generator]  # names -> a generator; see fedstale.rng

T = TypeVar("T")


class BadInput(ValueError):
    """A setting or an input that cannot be used; its text is one sentence for the user."""


def require(ok: bool, sentence: str) -> None:
    if not ok:
        raise BadInput(sentence)


def number_in(x: object, least: float, most: float) -> TypeGuard[float]:
    """Whether x is a number in [least, most]; True and False are no numbers."""
    return isinstance(x, Real) and not isinstance(x, bool) and least <= float(x) <= most


def known(name: object, table: Mapping[str, Any], what: str) -> str:
    """`name` if the table has it, else a sentence with the nearest that it has."""
    if isinstance(name, str) and name in table:
        return name
    near = difflib.get_close_matches(name[:100], table, n=1, cutoff=0.6) if isinstance(name, str) else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise BadInput(f"{what} {shown(name)} is unknown; {hint}known: {', '.join(table)}")


def shown(value: object) -> str:
    """A value as a sentence quotes it: on one line, in the words of TOML, and not too long."""
    return str(value).lower() if isinstance(value, bool) else " ".join(_QUOTE.repr(value).split())


_QUOTE = reprlib.Repr()
_QUOTE.maxstring = _QUOTE.maxother = _QUOTE.maxlong = 60


@dataclass_transform(frozen_default=True)
def part(cls: type[T]) -> type[T]:
    """A frozen dataclass that checks the names and types of its settings; comparable even where one is an array."""
    made = dataclasses.dataclass(frozen=True, eq=False)(cls)
    init, names = made.__init__, {f.name: f for f in dataclasses.fields(made) if f.init}  # type: ignore[arg-type]

    @functools.wraps(init)
    def __init__(self: Any, *values: Any, **settings: Any) -> None:
        for name in settings:
            known(name, names, f"{cls.__name__} setting")
        try:
            init(self, *values, **settings)
        except BadInput:
            raise  # the part's own sentence
        except Exception:
            check_types(made, dict(zip(names, values, strict=False)) | settings)
            raise
        check_types(made, dict(zip(names, values, strict=False)) | settings)

    def values(self: Any) -> list[Any]:
        return [getattr(self, f.name) for f in dataclasses.fields(self)]

    def __eq__(self: Any, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(x, y) for x, y in zip(values(self), values(other), strict=True))

    def __hash__(self: Any) -> int:
        plain = ((v.shape, *v.ravel().tolist()) if isinstance(v, np.ndarray) else v for v in values(self))
        return hash((type(self).__name__, *plain))

    made.__init__ = __init__  # type: ignore[method-assign]
    made.__eq__ = __eq__  # type: ignore[method-assign]
    made.__hash__ = __hash__  # type: ignore[method-assign]
    return made


def _same(x: object, y: object) -> bool:
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return np.array_equal(np.asarray(x), np.asarray(y))
    return bool(x == y)


def check_types(cls: type, settings: Mapping[str, Any]) -> None:
    """Refuse a setting whose value is not what the type hint of its field allows."""
    hints = _hints(cls)
    for name, value in settings.items():
        ok = name not in hints or _fits(hints[name], value)
        require(ok, f"{name} must be {_words(hints.get(name))}, got {shown(value)}")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except NameError:  # a hint that is only known where the class was made
        return {}


_ARRAY = {*typing.get_args(npt.ArrayLike)}
_PLAIN: dict[Any, tuple[str, Any]] = {
    bool: ("true or false", (bool, np.bool_)),
    int: ("a whole number", (int, np.integer)),
    float: ("a number", (int, float, np.integer, np.floating)),
    str: ("a text", str),
}


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value is what a type hint says; a list is as good as a tuple."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if any(typing.get_origin(kind) is os.PathLike for kind in inner):
        return True  # a table or the file that holds it: the part reads and checks it
    if {*inner} >= _ARRAY:
        return _numeric(value) or any(_fits(kind, value) for kind in {*inner} - _ARRAY)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(kind, value) for kind in inner)
    if origin in (tuple, collections.abc.Sequence):
        if not isinstance(value, list | tuple):
            return False
        kinds = inner if origin is tuple and inner[-1] is not Ellipsis else inner[:1] * len(value)
        return len(kinds) == len(value) and all(map(_fits, kinds, value))
    if origin is typing.Literal:
        return isinstance(value, str) and value in inner
    if hint in _PLAIN:
        return (
            isinstance(value, _PLAIN[hint][1])
            and isinstance(value, bool | np.bool_) == (hint is bool)
            and _sound(value)
        )
    if isinstance(hint, type) and any(isinstance(member, property) for member in vars(hint).values()):
        return True  # a task, say: to ask would be to compute its properties
    try:
        return isinstance(value, origin or hint) and not isinstance(value, type)
    except TypeError:  # a hint that cannot be asked
        return True


def _sound(value: Any) -> bool:
    """No text with a NUL in it, no whole number beyond 64 bits."""
    return "\0" not in value if isinstance(value, str) else not isinstance(value, int) or abs(value) < 2**63


def _numeric(value: Any) -> bool:
    """Whether it is a number or an array of numbers; true and false are none."""
    if value is None or isinstance(value, str | bytes | Mapping):
        return False
    try:
        bits = isinstance(value, list | tuple) and bool in map(type, np.asarray(value, object).flat)
        return np.asarray(value).dtype.kind in "iuf" and not bits
    except (ValueError, TypeError, OverflowError, RuntimeError):  # rows of different lengths, or no array at all
        return False


def _words(hint: Any) -> str:
    """What a setting with this type hint must be: "a number, an array of numbers or 'local'"."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        array = ["a number", "an array of numbers"] if {*inner} >= _ARRAY else []
        rest = [_words(kind) for kind in inner if kind is not type(None) and not (array and kind in _ARRAY)]
        *first, last = array + rest
        return f"{', '.join(first)} or {last}" if first else last
    if origin in (tuple, collections.abc.Sequence):
        return f"a list of {_words(inner[0]).removeprefix('a ')}s"
    if origin is typing.Literal:
        return " or ".join(map(repr, inner))
    return _PLAIN[hint][0] if hint in _PLAIN else f"{(origin or hint).__name__}()"


def weighted_sum(weights: npt.NDArray[Any], rows: Array) -> npt.NDArray[np.float64]:
    """Σ_k weights[k] · rows[k] in float64, row after row: the same bits whatever BLAS or threads do."""
    total = np.zeros(rows.shape[1])
    for weight, row in zip(weights.tolist(), rows, strict=True):
        total += weight * row
    return total


def _brief(record: Any) -> str:
    """`Round(t=3, params=float32[10], …)`: long arrays by their shape, states by their type."""
    told = (f"{name}={_shown(value)}" for name, value in record._asdict().items())
    return f"{type(record).__name__}({', '.join(told)})"


def _shown(value: object) -> str:
    if isinstance(value, np.ndarray):
        short = value.size <= 10 and value.dtype.kind == "i"
        return str(value.tolist()) if short else f"{value.dtype}{[*value.shape]}"
    return repr(value) if isinstance(value, int | float | Checkpoint | None) else f"<{type(value).__name__}>"


class Round(NamedTuple):
    """What the server holds when round t closes."""

    t: int
    params: Array  # (d,)   the parameters that were sent
    clients: Ids  # (m,)   who was heard from, ascending
    updates: Array  # (m, d) local minus sent
    arrived: Mask  # (m, d) or (m, 1): which coordinates got through
    losses: Array  # (m,)   local loss at the parameters sent
    weights: Array  # (n,)   a_i, sums to 1
    probs: Array  # (n,)   belief that a coordinate of client i's update is here
    total_lr: float = float("nan")  # Σ lr over the local steps: -update / total_lr is a mean gradient

    def __repr__(self) -> str:
        return _brief(self)

    def received(self) -> Array:
        """The updates with zeros where a coordinate did not arrive, whatever is stored there."""
        return self.updates if self.arrived.all() else np.where(self.arrived, self.updates, np.float32(0))

    def inverse(self) -> npt.NDArray[np.float64]:
        """a_i / p_i of the clients heard from, (m,)."""
        p = self.probs[self.clients].astype(np.float64)
        if not (p > 0).all():
            bad = self.clients[~(p > 0)][:5].tolist()
            raise BadInput(f"inverse weighting needs p > 0, got {p.min():g} for clients {bad}")
        return self.weights[self.clients] / p


class Availability(NamedTuple):
    """What the server knows before it chooses who trains in round t (see Strategy.select)."""

    t: int
    clients: Ids  # (k,) who is available, ascending
    losses: Array  # (k,) the loss each reports at the current parameters
    weights: Array  # (n,)
    probs: Array  # (n,)
    mixing: Array  # (n,) belief about λ_i, how much a round's presence says of the next; 0 where there is none


@part
class Local:
    """Local training: `steps` SGD steps on batches of `batch` samples at rate lr / (1 + decay·t).

    `prox` is FedProx's μ: every gradient gets μ (w - w_sent), which holds clients near what was sent.
    """

    lr: float
    steps: int = 5
    batch: int = 32
    decay: float = 0.0
    prox: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.lr < float("inf"), f"lr must be above 0 and finite, got {self.lr}")
        require(self.steps >= 1, f"steps must be at least 1, got {self.steps}")
        require(self.batch >= 1, f"batch must be at least 1, got {self.batch}")
        for name, value in (("decay", self.decay), ("prox", self.prox)):
            require(0 <= value < float("inf"), f"{name} must be at least 0 and finite, got {value}")

    def rate(self, t: int) -> float:
        return self.lr / (1.0 + self.decay * t)


class Job(NamedTuple):
    """One run's local training of one round."""

    params: Array  # (d,)
    clients: Ids  # (m,)
    seed: int
    t: int
    local: Local
    drift: Array | None = None  # (m, d) added to every gradient of the client (SCAFFOLD)


class Reply(NamedTuple):
    updates: Array  # (m, d) local minus sent
    losses: Array  # (m,)   loss of the first batch, at the parameters sent


class Checkpoint(NamedTuple):
    """All that round t + 1 depends on: a run resumed from it equals one never stopped."""

    t: int
    params: Array
    state: State  # the strategy's
    belief: Belief  # the estimator's
    server: State
    channel: State

    def __repr__(self) -> str:
        return _brief(self)


class Snapshot(NamedTuple):
    """Round t as it happened, and what the next one starts from.

    The arrays in `checkpoint.state` are the strategy's own: use or copy them before the next round.
    """

    t: int
    params: Array  # (d,) after the step
    step: Array  # (d,) what the strategy returned
    available: Ids  # who could have taken part
    chosen: Ids  # who of them was asked to train: all, unless the strategy selects
    clients: Ids  # (m,) whose update was used
    refused: Ids  # whose update was not finite
    losses: Array  # (m,)
    probs: Array  # (n,)
    checkpoint: Checkpoint

    def __repr__(self) -> str:
        return _brief(self)


@runtime_checkable
class Strategy(Protocol):
    """A server rule: it turns the updates of a round into a step.

    Optional abilities: Selects, Drifts, DividesByProbability, BindsTask.
    """

    def init(self, n: int, d: int) -> State: ...
    def aggregate(self, state: State, r: Round) -> tuple[Array, State]:
        """The step (d,) and the next state; may reuse the arrays of `state`."""
        ...


@runtime_checkable
class Participation(Protocol):
    """The process that says which clients are available in each round. Optional ability: Mixes."""

    def probs(self, n: int) -> Array:
        """(n,) marginals."""
        ...

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        """One (n,) row per round, endless."""
        ...


@runtime_checkable
class Estimator(Protocol):
    """An estimate of p_i from the clients heard so far; it never sees the future.

    A client that was available and not chosen counts as heard. Optional abilities: EstimatesMixing,
    WithTruth, WarmsUp.
    """

    def init(self, n: int) -> Belief: ...
    def probs(self, belief: Belief) -> Array: ...
    def observe(self, belief: Belief, heard: Mask) -> Belief: ...


@runtime_checkable
class Channel(Protocol):
    """What gets through. Draw for all n clients, so that who was chosen does not change who is lost."""

    def probs(self, n: int, d: int) -> Array:
        """(n,) chance that anything of the update of an available, chosen client arrives."""
        ...

    def share(self, n: int, d: int) -> Array:
        """(n,) chance that a given coordinate is there, given that anything is: 1 unless updates are cut."""
        ...

    def init(self, n: int, streams: Streams) -> State: ...
    def downlink(self, state: State, clients: Ids, streams: Streams) -> tuple[Mask, State]:
        """(k,) who of `clients` receives the parameters, once a round; who does not, does not train."""
        ...

    def uplink(self, state: State, clients: Ids, d: int, streams: Streams) -> tuple[Mask, State]:
        """(m, 1) or (m, d): what arrives of the updates of `clients`."""
        ...


@runtime_checkable
class Server(Protocol):
    """What is done with a step: params + change."""

    def init(self, d: int) -> State: ...
    def apply(self, state: State, params: Array, step: Array) -> tuple[Array, State]: ...


@runtime_checkable
class Task(Protocol):
    """Model, data and loss of every client, behind flat float32 vectors.

    Optional abilities: ScoresClients, HasOptima, HasDevice, CountsSamples.
    """

    @property
    def n(self) -> int: ...
    @property
    def d(self) -> int: ...
    @property
    def weights(self) -> Array: ...
    def init(self, seed: int) -> Array: ...
    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Any]:
        """`local.steps` batches of the client, each understood by `gradient`."""
        ...

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        """Loss and gradient (d,) of one batch; the gradient may be overwritten by the next call."""
        ...

    def evaluate(self, params: Array) -> Mapping[str, float]: ...


@runtime_checkable
class Engine(Protocol):
    """How local training runs. Optional abilities: StepsTogether, ExplainsItself, Closes."""

    @property
    def task(self) -> Task: ...
    @property
    def local(self) -> Local: ...
    def train(self, jobs: Sequence[Job]) -> list[Reply]: ...
    def losses(self, job: Job) -> Array:
        """(m,) loss of each client's first batch of this round, without training."""
        ...


# Abilities: what a part may have beyond its protocol. They are asked for once, when a run is made.


@runtime_checkable
class Selects(Protocol):
    """A strategy that chooses which of the available clients train, from the losses they report."""

    def select(self, state: State, a: Availability) -> tuple[Ids, State]: ...


@runtime_checkable
class Drifts(Protocol):
    """A strategy that adds a vector to every local gradient of a client, such as SCAFFOLD's c - c_i."""

    def drift(self, state: State, clients: Ids) -> Array:
        """(m, d), one row per client that trains."""
        ...


@runtime_checkable
class DividesByProbability(Protocol):
    """A strategy that may divide by p_i: if it does, clients with p_i = 0 are refused before any work."""

    @property
    def inverse_weighting(self) -> bool: ...


@runtime_checkable
class BindsTask(Protocol):
    """A strategy that takes settings from the task of a simulation, such as each client's least loss."""

    def bind(self, task: "Task") -> "Strategy": ...


@runtime_checkable
class Wraps(Protocol):
    """A strategy around another one, `strategy`: it selects and drifts only if that one does."""

    @property
    def strategy(self) -> "Strategy": ...


@runtime_checkable
class Mixes(Protocol):
    """A participation process with memory: λ_i says how much one round's presence tells of the next."""

    def mixing(self, n: int) -> Array:
        """(n,) λ_i in [-1, 1]."""
        ...


@runtime_checkable
class EstimatesMixing(Protocol):
    """An estimator that also estimates λ_i."""

    def mixing(self, belief: Belief) -> Array: ...


@runtime_checkable
class WithTruth(Protocol):
    """An estimator that can be given the simulation's real probabilities (Known)."""

    @property
    def needs_truth(self) -> bool:
        """Whether it has no probabilities of its own."""
        ...

    def with_truth(self, probs: Array, mixing: Array) -> "Estimator":
        """A copy that uses these probabilities and λ_i where it has none of its own."""
        ...


@runtime_checkable
class WarmsUp(Protocol):
    """An estimator that observes `warmup_rounds` rounds of the participation before round 1."""

    @property
    def warmup_rounds(self) -> int: ...
    def warmed_up(self, rows: Iterator[Mask]) -> "Estimator":
        """A copy that has observed these rounds and asks for no more."""
        ...


@runtime_checkable
class ScoresClients(Protocol):
    """A task with scores of every client, such as its accuracy on its own test samples."""

    def per_client(self, params: Array) -> Mapping[str, npt.NDArray[Any]]: ...


@runtime_checkable
class HasOptima(Protocol):
    """A task that can compute the least loss that each client could reach alone, F_i*."""

    @property
    def optima(self) -> npt.NDArray[Any]: ...


@runtime_checkable
class HasDevice(Protocol):
    """A task that trains with torch on a device."""

    @property
    def device(self) -> Any: ...


@runtime_checkable
class CountsSamples(Protocol):
    """A task that knows how many training samples each client has, (n,): the large ones are trained first."""

    @property
    def samples(self) -> Ids: ...


@runtime_checkable
class HasClusters(Protocol):
    """A participation process whose clients come and go in clusters of equal size."""

    @property
    def clusters(self) -> int: ...


@runtime_checkable
class HasBeta(Protocol):
    """A strategy's state with β, the share of the memory that the next round uses."""

    @property
    def beta(self) -> float: ...


@runtime_checkable
class SavesItself(Protocol):
    """An object in a state that chooses its own serialised form, of plain arrays and numbers."""

    def saved(self) -> Any: ...
    def restored(self, saved: Any) -> Any: ...


@runtime_checkable
class StepsTogether(Protocol):
    """An engine that is faster with up to `width` runs in step."""

    @property
    def width(self) -> int: ...


@runtime_checkable
class ExplainsItself(Protocol):
    """An engine that chose another one: `name` is the choice, `note` says why."""

    @property
    def name(self) -> str: ...
    @property
    def note(self) -> str: ...


@runtime_checkable
class Closes(Protocol):
    """An engine that holds processes or memory until it is closed."""

    def close(self) -> None: ...


def selects(strategy: Strategy) -> Selects | None:
    """The strategy, if it chooses who trains."""
    return strategy if isinstance(strategy, Selects) and isinstance(_innermost(strategy), Selects) else None


def drifts(strategy: Strategy) -> Drifts | None:
    """The strategy, if it adds to local gradients."""
    return strategy if isinstance(strategy, Drifts) and isinstance(_innermost(strategy), Drifts) else None


def divides(strategy: Strategy) -> bool:
    """Whether the strategy divides by p_i."""
    inner = _innermost(strategy)
    return isinstance(inner, DividesByProbability) and inner.inverse_weighting


def _innermost(strategy: Strategy) -> Strategy:
    while isinstance(strategy, Wraps):
        strategy = strategy.strategy
    return strategy

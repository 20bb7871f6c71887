"""The words of the package: what a round is, and what each part must be able to do.

A part is a frozen dataclass whose fields are its settings, with pure methods over explicit state.
Parts are protocols: your own inherits nothing. Shapes: n clients, m heard from, d parameters.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, dataclass_transform

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
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


def known(name: object, table: Mapping[str, Any], what: str) -> str:
    """`name` if the table has it, else a sentence with the nearest that it has."""
    if isinstance(name, str) and name in table:
        return name
    near = difflib.get_close_matches(str(name), table, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise BadInput(f"{what} {name!r} is unknown; {hint}known: {', '.join(table)}")


@dataclass_transform(frozen_default=True)
def part(cls: type[T]) -> type[T]:
    """A frozen dataclass that is comparable even where a field is an array."""
    made = dataclasses.dataclass(frozen=True, eq=False)(cls)

    def values(self: Any) -> list[Any]:
        return [getattr(self, f.name) for f in dataclasses.fields(self)]

    def __eq__(self: Any, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(x, y) for x, y in zip(values(self), values(other), strict=True))

    def __hash__(self: Any) -> int:
        plain = ((v.shape, *v.ravel().tolist()) if isinstance(v, np.ndarray) else v for v in values(self))
        return hash((type(self).__name__, *plain))

    made.__eq__ = __eq__  # type: ignore[method-assign]
    made.__hash__ = __hash__  # type: ignore[method-assign]
    return made


def _same(x: object, y: object) -> bool:
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return np.array_equal(np.asarray(x), np.asarray(y))
    return bool(x == y)


def weighted_sum(weights: npt.NDArray[Any], rows: Array) -> npt.NDArray[np.float64]:
    """Σ_k weights[k] · rows[k] in float64, row after row: the same bits whatever BLAS or threads do."""
    total = np.zeros(rows.shape[1])
    for weight, row in zip(weights.tolist(), rows, strict=True):
        total += weight * row
    return total


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
        for name, value in vars(self).items():
            whole = name in ("steps", "batch")
            ok = isinstance(value, (int, np.integer) if whole else (int, float, np.number))
            require(ok, f"{name} must be a {'whole ' * whole}number, got {value!r}")
        require(self.lr > 0, f"lr must be above 0, got {self.lr}")
        require(self.steps >= 1, f"steps must be at least 1, got {self.steps}")
        require(self.batch >= 1, f"batch must be at least 1, got {self.batch}")
        require(self.decay >= 0, f"decay must be at least 0, got {self.decay}")
        require(self.prox >= 0, f"prox must be at least 0, got {self.prox}")

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


class Strategy(Protocol):
    """A server rule: from the updates of a round to a step.

    Four members are optional. `select(state, availability) -> (Ids, State)` chooses who trains among the
    available, from the losses they report, and may remember them. `drift(state, clients) -> (m, d)` is
    added to the gradients of those who train. `inverse_weighting = True` says that the rule divides by
    p_i, so that a client with p_i = 0 is refused before any work. `informed(task) -> Strategy` is the rule told
    what it asks to know of a simulation's task.
    """

    def init(self, n: int, d: int) -> State: ...
    def aggregate(self, state: State, r: Round) -> tuple[Array, State]:
        """The step (d,) and the next state; may reuse the arrays of `state`."""
        ...


class Participation(Protocol):
    """Who is available, one row a round.

    Optional: `mixing(n) -> (n,)`, the λ_i of those that remember; others have 0.
    """

    def probs(self, n: int) -> Array:
        """(n,) marginals."""
        ...

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        """One (n,) row per round, endless."""
        ...


class Estimator(Protocol):
    """A belief about p_i from who was heard; never given the future.

    Who was available and not chosen counts as heard. Optional: `mixing(belief) -> (n,)`, a belief about
    λ_i; `told(probs, mixing) -> Estimator`, for the one that is given the truth (Known); `watched`, rounds seen
    before the first, and `watching(rows) -> Estimator`, which sees them.
    """

    def init(self, n: int) -> Belief: ...
    def probs(self, belief: Belief) -> Array: ...
    def observe(self, belief: Belief, heard: Mask) -> Belief: ...


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


class Server(Protocol):
    """What is done with a step: params + change."""

    def init(self, d: int) -> State: ...
    def apply(self, state: State, params: Array, step: Array) -> tuple[Array, State]: ...


class Task(Protocol):
    """Model, data and loss of every client, behind flat float32 vectors."""

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


class Engine(Protocol):
    """How local training runs."""

    @property
    def task(self) -> Task: ...
    @property
    def local(self) -> Local: ...
    def train(self, jobs: Sequence[Job]) -> list[Reply]: ...
    def losses(self, job: Job) -> Array:
        """(m,) loss of each client's first batch of this round, without training."""
        ...

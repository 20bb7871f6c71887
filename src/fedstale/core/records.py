"""The records of a round: what is sent, what comes back, and what a simulation yields.

Shapes: n clients, m heard from, d parameters, b numbers in the model's buffers.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedstale.core.device_array import DeviceArray
from fedstale.core.local import Floats, Ids, Local, Work
from fedstale.core.parts import BadInput

__all__ = [
    "NEW", "NOBODY", "Array", "Availability", "Belief", "Checkpoint", "Clients", "Floats", "Ids", "Job", "Mask",
    "Reply", "Round", "Snapshot", "State", "Streams", "weighted_sum",
]  # fmt: skip

T = TypeVar("T")
Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
State = Any  # plain arrays and numbers in tuples, lists, dicts or dataclasses
Belief = Any  # the same, of an estimator
Streams = Callable[..., np.random.Generator]  # names -> a generator; see fedstale.core.rng


NOBODY: Ids = np.zeros(0, np.int64)
FEW = 1 << 14  # numbers that are multiplied in one call: for more of them, memory costs more than calls
NEW = -1  # in Clients, the number of a client that has not trained yet


class Clients(dict[int, State]):
    """What each client keeps from round to round, by its number; NEW is what all clients begin with."""

    def of(self, clients: Ids) -> dict[int, State]:
        """What these clients have, where they have anything."""
        start = self.get(NEW)
        found = {i: self.get(i, start) for i in clients.tolist()}
        return {i: state for i, state in found.items() if state is not None}

    def after(self, states: Mapping[int, State], clients: Ids) -> "Clients":
        """With what these clients have kept in a round."""
        return Clients(self | {i: states[i] for i in clients.tolist() if i in states})

    def saved(self) -> dict[str, Any]:
        """The numbers of the clients and their states, for a checkpoint (see SavesItself)."""
        return {"ids": np.array([*self], np.int64), "states": [*self.values()]}

    def restored(self, saved: dict[str, Any]) -> "Clients":
        """The clients of a checkpoint."""
        return Clients(zip(saved["ids"].tolist(), saved["states"], strict=True))


def weighted_sum(weights: npt.NDArray[Any], rows: Array | Floats) -> npt.NDArray[np.float64]:
    """Σ_k weights[k] · rows[k] in float64, row after row: the same bits whatever BLAS or threads do.

    A DeviceArray is summed on its device, in float32.
    """
    if isinstance(rows, DeviceArray):
        return rows.weighted_sum(weights)
    if rows.size <= FEW and rows.shape[1] > 1:  # numpy adds row after row where it does not add along the rows
        every: npt.NDArray[Any] = weights.astype(rows.dtype)[:, None] * np.asarray(rows)
        return np.asarray(np.add.reduce(every.astype(np.float64, order="C"), axis=0, initial=0.0))
    total = np.zeros(rows.shape[1])
    for weight, row in zip(weights.tolist(), rows, strict=True):
        total += weight * row
    return total


def _brief(record: Any) -> str:
    """`Round(t=3, params=float32[10], …)`: long arrays by their shape, states by their type, None left out."""
    told = (f"{name}={_shown(value)}" for name, value in record._asdict().items() if value is not None)
    return f"{type(record).__name__}({', '.join(told)})"


def _shown(value: object) -> str:
    if isinstance(value, np.ndarray):
        short = value.size <= 10 and value.dtype.kind == "i"
        return str(value.tolist()) if short else f"{value.dtype}{[*value.shape]}"
    return repr(value) if isinstance(value, int | float | Checkpoint | None) else f"<{type(value).__name__}>"


def _some(record: T, keep: Any, fields: str) -> T:
    """The record with these rows of its fields, where they are given."""
    rows = {name: getattr(record, name) for name in fields.split()}
    some = {k: x.of(keep) if isinstance(x, Work) else x[keep] for k, x in rows.items() if x is not None}
    return record._replace(**some)  # type: ignore[attr-defined, no-any-return]


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
    work: Work | None = None  # how much each client heard from has trained, if the engine says so
    gradients: Array | None = None  # (m, d) of the last local step, if the strategy needs it
    buffers: Floats | None = None  # (m, b) of the clients' models, if these have any
    idle: Ids = NOBODY  # who was available and not chosen: the estimator counts them as heard
    refused: Mapping[int, str] = {}  # client → why its update is not among these
    ages: Ids | None = None  # (m,) steps since the parameters that were sent; None without a clock
    starts: Array | None = None  # (m, d) the parameters that each was sent, if any of them are not `params`

    def __repr__(self) -> str:
        return _brief(self)

    def of(self, keep: Mask | Ids) -> "Round":
        """The round with these of its m clients alone."""
        return _some(self, keep, "clients updates arrived losses work gradients buffers ages starts")

    def staleness(self) -> Ids:
        """(m,) the ages of the updates; 0 without a clock."""
        return np.zeros(len(self.clients), np.int64) if self.ages is None else self.ages

    def received(self) -> Array:
        """The updates with zeros where a coordinate did not arrive, whatever is stored there."""
        return self.updates if self.arrived.all() else np.where(self.arrived, self.updates, np.float32(0))

    def average(self) -> npt.NDArray[np.float64]:
        """(d,) Σ_S a_i Δ_i / Σ_S a_i, each coordinate over the updates of which it arrived; 0 where none did."""
        a = self.weights[self.clients]  # (m,)
        present = weighted_sum(a, self.arrived.astype(np.float32))  # (d,) or (1,): Σ a_i of what arrived
        mean: npt.NDArray[np.float64] = weighted_sum(a, self.received()) / np.where(present > 0, present, 1.0)
        return mean

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


class Job(NamedTuple):
    """The local training of one run in one round."""

    params: Array  # (d,)
    clients: Ids  # (m,)
    seed: int
    t: int
    local: Local
    drift: Array | None = None  # (m, d) added to every gradient of the client (SCAFFOLD)
    buffers: Floats | None = None  # (b,) of a task that HasBuffers; those that its model is made with if None
    states: Mapping[int, State] | None = None  # what clients of the job have kept from earlier rounds, by client
    starts: Array | None = None  # (m, d) where each client begins, in place of params; see `core.train`
    last_gradient: bool = False  # whether the reply needs `gradients`; see `core.train`

    def of(self, keep: Mask | Ids | slice) -> "Job":
        """The training of these of its m clients alone."""
        some = _some(self, keep, "clients drift starts")
        known = self.states and {i: self.states[i] for i in some.clients.tolist() if i in self.states}
        return some._replace(states=known)


class Reply(NamedTuple):
    """What the clients of a job send back."""

    updates: Array  # (m, d) local minus sent
    losses: Array  # (m,)   loss of the first batch, at the parameters sent
    work: Work | None = None  # how much each client has trained; strategies such as Scaffold need it
    buffers: Floats | None = None  # (m, b) after training, of a task that HasBuffers
    states: Mapping[int, State] | None = None  # what the clients keep for later rounds, by client
    gradients: Array | None = None  # (m, d) of the last local step, if the job asks for it

    def of(self, keep: Mask | Ids | slice) -> "Reply":
        """What these of the m clients send; `states` are by client, those of all."""
        return _some(self, keep, "updates losses work buffers gradients")


class Checkpoint(NamedTuple):
    """All that round t + 1 depends on: a run resumed from it equals one never stopped."""

    t: int
    params: Array
    state: State  # the strategy's
    belief: Belief  # the estimator's
    server: State
    channel: State
    buffers: Floats | None = None  # (b,) the model's buffers that training changes: averaged, never stepped
    clients: Clients | None = None  # what each client keeps from round to round, if clients keep anything
    defence: State = None  # what the defence has seen of each client, if there is one
    sent: Mapping[int, Array] | None = None  # with a clock: step → its parameters, while a client trains on them

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
    refused: Ids  # whose update was not finite, or was refused by the defence
    losses: Array  # (m,)
    probs: Array  # (n,)
    checkpoint: Checkpoint
    bytes_up: int = 0  # of this round
    bytes_down: int = 0
    ages: Ids | None = None  # (m,) steps since the parameters that each client was sent; None without a clock
    seconds: float | None = None  # since the beginning; None without a clock
    lost: int = 0  # with a clock: trainings in vain since the step before
    idle: float | None = None  # with a clock: share of the time that places for clients at work were empty

    def __repr__(self) -> str:
        return _brief(self)

"""Abilities: what a part may have beyond its protocol, and what is asked of parts by them.

Those of a strategy are its hooks (`core.hooks`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedstale.core.device_array import DeviceArray
from fedstale.core.local import Local
from fedstale.core.parts import BadInput, able, shown
from fedstale.core.protocols import Estimator, Task
from fedstale.core.records import Array, Belief, Checkpoint, Clients, Floats, Ids, Mask, Snapshot, State

__all__ = [
    "AggregatesOnDevice", "Closes", "CountsSamples", "DescribesModel", "DrawsByRound", "EstimatesMixing",
    "ExplainsItself", "FetchesSamples", "GivesRoot", "HasBeta", "HasBuffers", "HasClusters", "HasDevice",
    "HasExcluded", "HasInner", "HasOptima", "HasSlots", "KeepsOwn", "ListsPresent", "Mixes", "NarrowsEvaluation",
    "RunsLoops", "SavesItself", "ScoresClients", "StepsTogether", "WarmsUp", "WithTruth", "buffered", "evaluate",
    "keeps_own", "place_of", "runs_loops", "scores_of_clients",
]  # fmt: skip


@runtime_checkable
class Mixes(Protocol):
    """A participation process with memory: λ_i says how much one round's presence tells of the next."""

    def mixing(self, n: int) -> Array:
        """(n,) λ_i in [-1, 1]."""


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

    def with_truth(self, probs: Array, mixing: Array) -> Estimator:
        """A copy that uses these probabilities and λ_i where it has none of its own."""


@runtime_checkable
class WarmsUp(Protocol):
    """An estimator that observes `warmup_rounds` rounds of the participation before round 1."""

    @property
    def warmup_rounds(self) -> int: ...
    def warmed_up(self, rows: Iterator[Mask]) -> Estimator:
        """A copy that has observed these rounds and asks for no more."""


@runtime_checkable
class ScoresClients(Protocol):
    """A task with scores of every client, such as its accuracy on its own test samples."""

    def per_client(self, params: Array) -> Mapping[str, npt.NDArray[Any]]: ...


@runtime_checkable
class NarrowsEvaluation(Protocol):
    """A task with samples, whose evaluation can be limited to some clients, or to samples that are not trained."""

    @property
    def weights(self) -> Array: ...
    def evaluated_samples(self, training: bool) -> int:
        """Samples of one evaluation, with or without those of training, by how much work a trained sample is."""

    def narrowed(self, clients: Ids | None, training: bool) -> Task:
        """A copy whose `evaluate` covers these clients, all if None, with or without the training objective."""


@runtime_checkable
class FetchesSamples(Protocol):
    """A task that says whether its samples are fetched one by one when they are needed."""

    @property
    def fetched(self) -> bool: ...


@runtime_checkable
class HasOptima(Protocol):
    """A task that can compute the least loss that each client could reach alone, F_i*."""

    @property
    def optima(self) -> npt.NDArray[Any]: ...


@runtime_checkable
class ListsPresent(Protocol):
    """A participation that lists who is there, in ascending order: its rows are the masks of these lists.

    A round among a million clients then costs as much as its participants.
    """

    def present_clients(self, n: int, rng: np.random.Generator) -> Iterator[Ids]: ...


@runtime_checkable
class HasDevice(Protocol):
    """A task that trains with torch on a device."""

    @property
    def device(self) -> Any: ...


@runtime_checkable
class AggregatesOnDevice(Protocol):
    """A task whose updates may stay on its device, to be summed and remembered there."""

    @property
    def aggregates_at(self) -> DeviceArray | None:
        """An array of that device; None if updates are arrays of numpy."""


def place_of(task: Task) -> DeviceArray | None:
    """Where the updates of a task stay; None if they are arrays of numpy."""
    return task.aggregates_at if able(task, AggregatesOnDevice) else None


@runtime_checkable
class CountsSamples(Protocol):
    """A task that knows how many training samples each client has, (n,): the large ones are trained first."""

    @property
    def samples(self) -> Ids: ...


@runtime_checkable
class DrawsByRound(Protocol):
    """A task whose batches depend on the round: this method is asked in the place of `batches`."""

    def round_batches(self, t: int, client: int, local: Local, rng: np.random.Generator) -> Iterator[Any]:
        """The batches of the client in round t, each understood by `gradient`."""


@runtime_checkable
class RunsLoops(Protocol):
    """A task that can train a client by a loop of the user's own, `Local.train`."""

    def run_loop(self, params: Array, client: int, local: Local, context: Any) -> tuple[Array, float | None]:
        """The parameters (d,) after the loop, and the loss that it returned, if it did."""


@runtime_checkable
class HasSlots(Protocol):
    """A task whose flat vector is made of a model's parameters, each with a `shape` and its slice `where`."""

    @property
    def slots(self) -> Sequence[Any]: ...


@runtime_checkable
class GivesRoot(Protocol):
    """A task that can lend a simulated server a few of its samples, for a defence."""

    def root(self, samples: int) -> Callable[[Array], Array]:
        """The function from parameters (d,) to (labels, d), the gradients of the loss on these samples by label."""


@runtime_checkable
class HasBuffers(Protocol):
    """A task whose model has buffers that training changes, such as the running statistics of BatchNorm.

    They are one vector (b,), which is sent and averaged beside the parameters and never goes through a strategy, a
    memory, 1/p or a server. An engine loads them before a client's first gradient and reads them after its last.
    """

    @property
    def initial_buffers(self) -> Floats:
        """(b,) the buffers before round 1; (0,) if training changes none."""

    def load_buffers(self, buffers: Floats) -> None:
        """Set the buffers that the next gradient begins with."""

    def read_buffers(self) -> Floats:
        """(b,) the buffers as the last gradient left them."""

    def evaluate(self, params: Array, buffers: Floats | None = None) -> Mapping[str, float]:
        """Name → value of every metric, of the model with these parameters and buffers."""


@runtime_checkable
class KeepsOwn(Protocol):
    """A task whose clients keep a part of the model to themselves, such as a personal head (or FedBN's layers).

    The whole vector of a client is (d,) the parameters that are sent and, behind them, those of its own. A client's
    own parameters and buffers are its state, which never reaches a strategy or a server.
    """

    @property
    def keeps_own(self) -> bool:
        """Whether there is such a part; a task without it is trained as any other."""

    def initial_state(self, seed: int) -> State:
        """What a client that has not trained yet has of its own, in a run with this seed."""

    def enter(self, params: Array, state: State | None) -> Array:
        """The whole vector of a client with this state; its own buffers are those of the next gradient."""

    def leave(self, whole: Array) -> dict[str, Any]:
        """The state of the client that was trained last, from its whole vector."""

    def evaluate(self, params: Array, buffers: Floats | None, states: Clients | None) -> Mapping[str, float]:
        """Name → value of every metric, with each client's own part of the model."""


@runtime_checkable
class DescribesModel(Protocol):
    """A task with a model whose parameters and buffers have names."""

    def layout(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """`parameters` and `buffers`: name, shape and dtype of each piece of the two vectors, in their order."""


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
class HasExcluded(Protocol):
    """A strategy's state with the clients (n,) that it left out in the last round, whether available or not."""

    @property
    def excluded(self) -> Mask: ...


@runtime_checkable
class HasInner(Protocol):
    """The state of a strategy around another one, with that of the other (see `core.Wrapped`)."""

    @property
    def inner(self) -> State: ...


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


def buffered(task: Task) -> HasBuffers | None:
    """The task, if its model has buffers that training changes."""
    return task if able(task, HasBuffers) and len(task.initial_buffers) else None


def keeps_own(task: Task) -> KeepsOwn | None:
    """The task, if its clients keep a part of the model to themselves."""
    return task if able(task, KeepsOwn) and task.keeps_own else None


def runs_loops(task: Task) -> RunsLoops:
    """The task, if it can train by a loop of the user's own; refuses one that cannot."""
    if not isinstance(task, RunsLoops):
        kind = type(task).__name__
        raise BadInput(f"local.train needs a task with a torch model, such as Supervised, got {kind}")
    return task


def evaluate(task: Task, now: Checkpoint | Snapshot) -> Mapping[str, float]:
    """Name → value of every metric of the model in a checkpoint, or of the one after the round of a snapshot."""
    now = _checkpoint(now)
    if own := keeps_own(task):
        return own.evaluate(now.params, now.buffers, now.clients)
    if keeper := buffered(task):
        return keeper.evaluate(now.params, now.buffers)
    return task.evaluate(now.params)


def scores_of_clients(task: Task, now: Checkpoint | Snapshot) -> Mapping[str, npt.NDArray[Any]]:
    """Name → (n,) scores of every client; nothing if the task has none."""
    now = _checkpoint(now)
    if not isinstance(task, ScoresClients):
        return {}
    scores: Callable[..., Mapping[str, npt.NDArray[Any]]] = task.per_client
    if keeps_own(task):
        return scores(now.params, now.buffers, now.clients)
    return scores(now.params, now.buffers) if buffered(task) else scores(now.params)


def _checkpoint(now: Checkpoint | Snapshot) -> Checkpoint:
    if not isinstance(now, Checkpoint | Snapshot):  # the sentence is made only then: it takes longer than a round
        raise BadInput(
            f"evaluate takes a task and then a snapshot of fs.simulate or its checkpoint, got {shown(now)}"
        )
    return now.checkpoint if isinstance(now, Snapshot) else now


@runtime_checkable
class NamesClients(Protocol):
    """A task or a recorded participation with a name for each client; `names` is empty where they have none."""

    @property
    def names(self) -> tuple[str, ...]: ...


@runtime_checkable
class TellsLabels(Protocol):
    """A task that says in words which labels each client has; `labels` is empty where there are none."""

    @property
    def labels(self) -> Sequence[str]: ...


@runtime_checkable
class HasNote(Protocol):
    """A task that says how its samples were prepared; `note` is empty if there is nothing to say."""

    @property
    def note(self) -> str: ...


def names_of(part: object) -> tuple[str, ...]:
    """The names of the clients; empty where they have none."""
    return part.names if able(part, NamesClients) else ()


def labels_of(part: object) -> Sequence[str]:
    """Which labels each client has, in words; empty where there are none."""
    return part.labels if able(part, TellsLabels) else ()


def in_order(names: Iterable[str]) -> list[str]:
    """Different names in ascending order, by value if all of them are numbers."""
    found = {*names}
    try:
        return sorted(found, key=lambda name: (float(name), name))
    except ValueError:
        return sorted(found)


def listed(names: Sequence[str], most: int = 3) -> str:
    """`Berlin, Bonn and 4 more`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")

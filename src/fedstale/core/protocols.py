"""What each part must be able to do. A part of your own inherits nothing: it has these methods."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedstale.core.local import Ids, Local
from fedstale.core.records import Array, Belief, Job, Mask, Reply, Round, State, Streams

__all__ = ["Channel", "Engine", "Estimator", "Participation", "Server", "Strategy", "Task"]


@runtime_checkable
class Strategy(Protocol):
    """A server rule: it turns the updates of a round into a step.

    What it may do besides is in `Hooks`.
    """

    def init(self, n: int, d: int) -> State:
        """The state before round 1, for n clients and d parameters."""

    def aggregate(self, state: State, r: Round) -> tuple[Array, State]:
        """The step (d,) and the next state; may reuse the arrays of `state`."""


@runtime_checkable
class Participation(Protocol):
    """The process that says which clients are available in each round. Optional ability: Mixes."""

    def probs(self, n: int) -> Array:
        """(n,) marginals."""

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        """One (n,) row per round, endless."""


@runtime_checkable
class Estimator(Protocol):
    """An estimate of p_i from the clients heard so far; it never sees the future.

    A client that was available and not chosen counts as heard. Optional abilities: EstimatesMixing,
    WithTruth, WarmsUp.
    """

    def init(self, n: int) -> Belief:
        """The belief before round 1."""

    def probs(self, belief: Belief) -> Array:
        """(n,) the estimates of p_i."""

    def observe(self, belief: Belief, heard: Mask) -> Belief:
        """The belief after a round in which the clients in `heard` (n,) were heard."""


@runtime_checkable
class Channel(Protocol):
    """The network between server and clients: it says what gets through.

    Draw for all n clients, so that the choice of clients does not change which messages are lost.
    """

    def probs(self, n: int, d: int) -> Array:
        """(n,) chance that anything of the update of an available, chosen client arrives."""

    def share(self, n: int, d: int) -> Array:
        """(n,) chance that a given coordinate is there, given that anything is: 1 unless updates are cut."""

    def init(self, n: int, streams: Streams) -> State:
        """The state before round 1."""

    def downlink(self, state: State, clients: Ids, streams: Streams) -> tuple[Mask, State]:
        """(k,) which of `clients` receive the parameters, once a round; the others do not train."""

    def uplink(self, state: State, clients: Ids, d: int, streams: Streams) -> tuple[Mask, State]:
        """(m, 1) or (m, d): which coordinates of the updates of `clients` arrive."""


@runtime_checkable
class Server(Protocol):
    """A server optimiser: it turns a step into a change of the parameters."""

    def init(self, d: int) -> State:
        """The state before round 1."""

    def apply(self, state: State, params: Array, step: Array) -> tuple[Array, State]:
        """The change (d,) that is added to the parameters, and the next state."""


@runtime_checkable
class Task(Protocol):
    """Model, data and loss of every client, behind flat float32 vectors.

    Optional abilities: ScoresClients, HasOptima, HasDevice, CountsSamples, DrawsByRound, RunsLoops.
    """

    @property
    def n(self) -> int:
        """The number of clients."""

    @property
    def d(self) -> int:
        """The number of parameters."""

    @property
    def weights(self) -> Array:
        """(n,) a_i, the weight of each client in the objective; they sum to 1."""

    def init(self, seed: int) -> Array:
        """(d,) the parameters that training starts from."""

    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Any]:
        """`local.steps` batches of the client, each understood by `gradient`."""

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        """Loss and gradient (d,) of one batch; the gradient may be overwritten by the next call."""

    def evaluate(self, params: Array) -> Mapping[str, float]:
        """Name → value of every metric."""


@runtime_checkable
class Engine(Protocol):
    """How local training runs. Optional abilities: StepsTogether, ExplainsItself, Closes."""

    @property
    def task(self) -> Task:
        """The task whose clients are trained."""

    @property
    def local(self) -> Local:
        """How clients train, unless a job says otherwise."""

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        """The reply to every job: jobs are independent of each other."""

    def losses(self, job: Job) -> Array:
        """(m,) loss of each client's first batch of this round, without training."""

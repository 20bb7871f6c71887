"""Everything that the next round depends on, of a federation and of a Flower strategy alike."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.clock import Pace
from fedstale.core.abilities import EstimatesMixing
from fedstale.core.hooks import hooks_of
from fedstale.core.parts import require
from fedstale.core.protocols import Estimator, Server, Strategy
from fedstale.core.records import Array, Availability, Checkpoint, Floats, Ids, State
from fedstale.defence import Defence
from fedstale.flower.federation.state.cohorts import Cohorts
from fedstale.flower.federation.state.resize import resize

Counts = npt.NDArray[np.int64]


class ClientCounts(NamedTuple):
    """What is counted for each client since it joined, (n,) each."""

    rounds: Counts  # closed rounds
    asked: Counts
    heard: Counts
    rejected: Counts
    last: Counts  # the round it was last heard in, 0 before the first
    realised: npt.NDArray[np.float64]  # sum of its realised weights
    target: npt.NDArray[np.float64]  # sum of its a_i

    @classmethod
    def empty(cls, n: int) -> "ClientCounts":
        """The counts of n clients that have just joined."""
        rounds, asked, heard, rejected, last = np.zeros((5, n), np.int64)
        return cls(rounds, asked, heard, rejected, last, realised=np.zeros(n), target=np.zeros(n))


class ServerState(NamedTuple):
    """A simulation's checkpoint, and what a federation knows besides: its clients and their counts."""

    checkpoint: Checkpoint
    counts: ClientCounts
    ids: Ids  # (n,) client numbers, ascending: position k of every array is client ids[k]
    roster: int  # the version of the roster that `ids` are from
    voids: int  # rounds so far that were void because the infrastructure failed

    def positions(self, clients: Iterable[int]) -> Ids:
        """The positions of these clients, ascending."""
        return np.flatnonzero(np.isin(self.ids, np.array(sorted(clients), np.int64)))


class Rules(NamedTuple):
    """The algorithm: a strategy, an estimator, a server rule, and a defence against liars."""

    strategy: Strategy
    estimator: Estimator
    server: Server
    defence: Defence | None = None

    @property
    def plain(self) -> Estimator:
        """The estimator of one cohort of clients, as it was chosen."""
        return self.estimator.estimator if isinstance(self.estimator, Cohorts) else self.estimator

    def initial(self, n: int, params: Array, buffers: Floats | None = None) -> ServerState:
        """The state before round 1, with n clients."""
        d = len(params)
        memory, belief = self.strategy.init(n, d), self.estimator.init(n)
        start = Checkpoint(0, params, memory, belief, self.server.init(d), channel=None, buffers=buffers)
        start = start._replace(defence=self.defence.init(n, d) if self.defence else None)
        return ServerState(start, ClientCounts.empty(n), np.arange(n), 0, 0)

    def with_roster(self, state: ServerState, ids: Ids, version: int) -> ServerState:
        """The state for another roster: rows of clients that left are gone, new clients start from nothing."""
        now, old = state.checkpoint, state.ids
        if not np.array_equal(old, ids):
            memory = resize(now.state, lambda n: self.strategy.init(n, len(now.params)), old, ids)
            now = now._replace(state=memory, belief=now.belief.resized(old, ids))
            if (defence := self.defence) is not None:
                watch = resize(now.defence, lambda n: defence.init(n, len(now.params)), old, ids)
                now = now._replace(defence=watch)
            state = state._replace(counts=resize(state.counts, ClientCounts.empty, old, ids))
        return state._replace(checkpoint=now, ids=ids, roster=version)

    def select(self, now: Checkpoint, available: Ids, losses: Array, weights: Array) -> tuple[Ids, State]:
        """Which of the available clients train, and the strategy's state after choosing: all, unless it selects."""
        select = hooks_of(self.strategy).select
        if select is None:
            return available, now.state
        estimator, none = self.estimator, np.zeros(len(weights), np.float32)
        mixing = estimator.mixing(now.belief) if isinstance(estimator, EstimatesMixing) else none
        a = Availability(now.t + 1, available, losses, weights, estimator.probs(now.belief), mixing)
        return select(now.state, a)


def require_asynchronous(pace: Pace, rule: Strategy, judged: bool) -> None:
    """Refuse what a server that waits for nobody cannot do."""
    require(not pace.rule(1).together, f"a pace is Buffer or Ticks, got {pace}: rounds are played without a pace")
    ok = hooks_of(rule).select is None
    require(ok, f"{rule} selects clients by their losses, which a server that waits for nobody does not know")
    ok = hooks_of(rule).drift is None
    require(ok, f"{rule} changes local gradients by what the server knows now, not without rounds")
    require(
        not judged, "a defence compares updates from the same parameters, which differ with a pace: turn it off"
    )

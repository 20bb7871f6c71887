"""Everything that the next round of a federation depends on."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Checkpoint, Estimator, Floats, Ids, Server, Strategy
from fedstale.defence import Defence
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
    """The algorithm of a federation: its strategy, estimator, server rule, and defence against liars."""

    strategy: Strategy
    estimator: Estimator
    server: Server
    defence: Defence | None = None

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

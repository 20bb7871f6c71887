"""All that the next round of a federation depends on."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Checkpoint, Estimator, Ids, Server, Strategy
from fedstale.federation.state.resize import moved

Counts = npt.NDArray[np.int64]


class Tally(NamedTuple):
    """What is counted of each client since it joined, (n,) each."""

    rounds: Counts  # closed rounds
    asked: Counts
    heard: Counts
    rejected: Counts
    last: Counts  # the round it was last heard in, 0 before the first
    realised: npt.NDArray[np.float64]  # sum of its realised weights
    target: npt.NDArray[np.float64]  # sum of its a_i

    @classmethod
    def empty(cls, n: int) -> "Tally":
        rounds, asked, heard, rejected, last = np.zeros((5, n), np.int64)
        return cls(rounds, asked, heard, rejected, last, realised=np.zeros(n), target=np.zeros(n))


class Book(NamedTuple):
    checkpoint: Checkpoint
    tally: Tally
    ids: Ids  # (n,) the clients, ascending: row k of every array is client ids[k]
    norms: npt.NDArray[np.float64]  # of the updates accepted lately
    roster: int  # the version of the roster that `ids` are from
    voids: int  # rounds that an infrastructure failure made void, so far


class Rules(NamedTuple):
    """The parts that a book is made for."""

    strategy: Strategy
    estimator: Estimator
    server: Server

    def blank(self, n: int, params: Array) -> Book:
        """The book of round 0 with n clients."""
        d = len(params)
        start = Checkpoint(
            0, params, self.strategy.init(n, d), self.estimator.init(n), self.server.init(d), channel=None
        )
        return Book(start, Tally.empty(n), np.arange(n), np.zeros(0), 0, 0)

    def enrolled(self, book: Book, ids: Ids, version: int) -> Book:
        """The same book for another roster: rows of who left are gone, newcomers start from nothing."""
        now, old = book.checkpoint, book.ids
        if not np.array_equal(old, ids):
            d = len(now.params)
            state = moved(now.state, lambda n: self.strategy.init(n, d), old, ids)
            now = now._replace(state=state, belief=moved(now.belief, self.estimator.init, old, ids))
            book = book._replace(tally=moved(book.tally, Tally.empty, old, ids))
        return book._replace(checkpoint=now, ids=ids, roster=version)

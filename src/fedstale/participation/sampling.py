"""Some of the available: uniformly at random, or in turns, on top of any participation."""

from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Count, Ids, Mask, Participation, part, stream
from fedstale.participation.bernoulli import Bernoulli, TwoGroups
from fedstale.participation.groups import Kind, ListsKinds, independent
from fedstale.participation.marginals import uniform
from fedstale.participation.trace import Recorded, recorded_kinds


@part
class Sampling:
    """`size` of the available clients of `base`, uniformly at random; all of them if they are fewer.

    The base's rows are those it would draw alone. The marginals, p_i · E[min(1, size / |available|) | i
    available], are exact (to rounding) for a base that lists its `kinds` of round: all of this package
    but the samplings themselves. For others they are the average over `draws` rows of the base from a
    stream of their own: the standard error is at most √(p_i / draws), more if rounds depend on each other.
    """

    base: Participation
    size: Count
    draws: Count = 20_000

    def probs(self, n: int) -> Array:
        kinds = _kinds(self.base, n)
        if kinds is not None:
            return uniform(kinds, n, self.size)
        rows = self.base.rows(n, stream(0, "sampling", "marginals"))
        chances = (row * np.float64(min(1.0, self.size / max(int(row.sum()), 1))) for row in rows)  # given the row
        return _average(chances, n, self.draws)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        return (_mask(n, clients) for clients in self.present_clients(n, rng))

    def present_clients(self, n: int, rng: np.random.Generator) -> Iterator[Ids]:
        """Who is there, without a look at all clients where all of them are always available."""
        own, always = _own(rng, self.base), isinstance(self.base, Bernoulli) and bool(np.all(self.base.p == 1.0))
        everybody: Iterable[Ids | int] = repeat(n) if always else map(np.flatnonzero, self.base.rows(n, rng))
        for available in everybody:  # a number stands for all the numbers below it
            m = available if isinstance(available, int) else len(available)
            if m <= self.size:
                yield np.arange(n) if isinstance(available, int) else available
            else:
                yield np.sort(own.choice(available, self.size, replace=False, shuffle=False))


@part
class RegularisedSampling:
    """`size` of the available clients of `base`, in turns; all of them if they are fewer.

    Those with the fewest turns so far go first, in random order among equals. Where the same clients
    are available for long, this walks one random permutation of them after the other: everybody once
    before anybody twice. Where they are not, who was away catches up.
    The marginals are long-run shares of the rounds: exact where clients are always available in the
    same company (everybody, or groups that take turns) or all have the same p_i, as everybody then gets as
    many turns; otherwise counted over `draws` rows from a stream of their own, with a standard error of
    about √(p_i / draws), for a recording over as many of its rounds.
    Wang and Ji, A Unified Analysis of Federated Learning with Arbitrary Client Participation, 2022, section 5.
    """

    base: Participation
    size: Count
    draws: Count = 20_000

    def probs(self, n: int) -> Array:
        kinds = _kinds(self.base, n)
        if kinds is not None and (_alike(kinds) or _same_company(kinds, n)):
            return uniform(kinds, n, self.size)
        return _average(self.rows(n, stream(0, "sampling", "marginals")), n, self.draws)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        own = _own(rng, self.base)
        turns = np.zeros(n, np.int32)
        for row in self.base.rows(n, rng):
            chosen = np.flatnonzero(row)
            if len(chosen) > self.size:
                had = turns[chosen]
                last = np.searchsorted(np.bincount(had).cumsum(), self.size)  # the most turns that get another
                first, equal = chosen[had < last], chosen[had == last]
                drawn = own.choice(equal, self.size - len(first), replace=False, shuffle=False)
                chosen = np.concatenate([first, drawn])
            turns[chosen] += 1
            yield _mask(n, chosen)


def _mask(n: int, clients: Ids) -> Mask:
    mask = np.zeros(n, np.bool_)
    mask[clients] = True
    return mask


def _own(rng: np.random.Generator, base: Participation) -> np.random.Generator:
    """The sampling's own stream, 2¹²⁸ draws away from the base's, and from that of a sampling inside."""
    depth = 1
    while isinstance(base, Sampling | RegularisedSampling):
        base, depth = base.base, depth + 1
    return np.random.Generator(cast(np.random.Philox, rng.bit_generator).jumped(depth))


def _kinds(base: Participation, n: int) -> list[Kind] | None:
    if isinstance(base, Bernoulli | TwoGroups):
        return [independent(base.probs(n))]
    if isinstance(base, Recorded):
        return list(recorded_kinds(base.recording(n)))
    return list(base.kinds(n)) if isinstance(base, ListsKinds) else None


def _alike(kinds: list[Kind]) -> bool:
    """All rounds are alike, and all clients are there equally often, each on its own."""
    return len(kinds) == 1 and len(np.unique(kinds[0].p)) == 1 and not kinds[0].together


def _same_company(kinds: list[Kind], n: int) -> bool:
    """Whenever a client is available, the same others are."""
    company, sizes = np.full(n, -1), [0] * len(kinds)
    for number, kind in enumerate(kinds):
        there = np.flatnonzero(kind.p[kind.group])
        if not np.isin(kind.p, (0, 1)).all() or len(np.unique(company[there])) > 1:
            return False
        if len(there) and company[there[0]] < 0:
            company[there], sizes[number] = number, len(there)
        if len(there) and sizes[company[there[0]]] != len(there):
            return False
    return True


def _average(rows: Iterator[npt.NDArray[Any]], n: int, draws: int) -> Array:
    return np.asarray(sum(islice(rows, draws), np.zeros(n)) / draws, np.float32)

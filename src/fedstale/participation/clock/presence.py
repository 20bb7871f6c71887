"""Presence in seconds: when each client comes and goes."""

import math
from collections.abc import Iterator
from itertools import chain, count, repeat
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedstale.core import BadInput, Ids, Mask, Participation
from fedstale.participation.events import Switches

NOBODY = np.zeros(0, np.int64)


class Change(NamedTuple):
    """An instant at which clients come or go."""

    seconds: float
    came: Ids
    left: Ids


@runtime_checkable
class InSeconds(Protocol):
    """A participation that knows the seconds at which clients come and go (Events)."""

    def switches(self, n: int) -> Switches: ...


def changes(who: Participation, n: int, round_seconds: float | None, rng: np.random.Generator) -> Iterator[Change]:
    """When clients come and go: a row holds for `round_seconds`; a recording, or who always comes, needs none."""
    if round_seconds is not None:
        return _by_rows(who.rows(n, rng), n, round_seconds)
    if bool((who.probs(n) >= 1).all()):
        return chain([Change(0.0, np.arange(n), NOBODY)], repeat(Change(math.inf, NOBODY, NOBODY)))
    if not isinstance(who, InSeconds):
        raise BadInput(
            f"{type(who).__name__} knows no seconds: the clock needs round_seconds, how long a row holds"
        )
    return _recorded(who.switches(n), n)


def _by_rows(rows: Iterator[Mask], n: int, round_seconds: float) -> Iterator[Change]:
    before = np.zeros(n, np.bool_)
    for k, row in enumerate(rows):
        here = row.astype(np.bool_)  # a copy
        yield Change(k * round_seconds, np.flatnonzero(here & ~before), np.flatnonzero(before & ~here))
        before = here


def _recorded(record: Switches, n: int) -> Iterator[Change]:
    """The switches that change anything; at each new beginning everybody is away, as before the first."""
    for lap in count():
        here = np.zeros(n, np.bool_)
        for seconds, i, on in zip(
            record.seconds.tolist(), record.clients.tolist(), record.on.tolist(), strict=True
        ):
            if on != here[i]:
                here[i] = on
                who = np.array([i])
                yield Change(lap * record.length + seconds, *((who, NOBODY) if on else (NOBODY, who)))
        yield Change((lap + 1) * record.length, NOBODY, np.flatnonzero(here))

"""Clients in groups: who belongs where, and how the clients of one kind of round come and go."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, Ids, require

MOST = 10**7  # groups, so that a wrong number does not fill the memory


class Kind(NamedTuple):
    """One kind of round: in `share` of all rounds, clients of group c are there with chance p[c].

    They come independently of each other, or, if `together`, all of a group or none. A participation
    that can list its kinds of round in `kinds(n)` has exact marginals under sampling.
    """

    share: float
    p: Floats  # (c,)
    group: Ids  # (n,) in 0 … c - 1
    together: bool = False


@runtime_checkable
class ListsKinds(Protocol):
    """A participation process that can list all its kinds of round."""

    def kinds(self, n: int) -> Iterator[Kind]: ...


def independent(p: npt.ArrayLike) -> Kind:
    """Every round alike, every client on its own: p is (n,)."""
    values, group = np.unique(np.asarray(p, np.float64), return_inverse=True)
    return Kind(1.0, values, group)


def checked_members(members: npt.ArrayLike | None, groups: int) -> Ids | None:
    """The group of each client, if it is given and every number is a group."""
    if members is None:
        return None
    ids = np.array(members)
    ok = ids.ndim == 1 and ids.size > 0 and ids.dtype.kind in "iu" and bool(((ids >= 0) & (ids < groups)).all())
    require(ok, f"members must be one group number in 0 … {groups - 1} per client, got {members}")
    return ids.astype(np.int64)


def group_of(n: int, groups: int, members: npt.ArrayLike | None) -> Ids:
    """(n,) the group of each client: as given, or `groups` blocks of neighbours of equal size (± 1)."""
    if members is None:
        return np.arange(n) * groups // n
    ids = np.asarray(members, np.int64)
    require(len(ids) == n, f"{n} clients need {n} members, got {len(ids)}")
    return ids

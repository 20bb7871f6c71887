"""A tree of nodes that answer requests or pass them on: rates in, rates served.

Rodio's thesis, section 5.3.1: eqs. (5.2), (5.3) and (5.5), with the transfer rates of problem P2.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Floats, Ids, keep, part, require


class Flows(NamedTuple):
    """Requests per second at every node, (n,) each."""

    incoming: Floats  # λ_i^l + Σ_children λ_j^t
    transferred: Floats  # λ_i^t, to the parent; 0 at a root
    served: Floats  # λ_i^s, the difference


@part
class Tree:
    """Node i answers with exit exits[i] and passes at most capacity[i] requests per second to its parent.

    `parents` holds node numbers from 0, and -1 for a root, which serves all that reaches it; several
    roots are several trees. `exits` count from 1 and never get shallower towards a root. `arrivals` are
    the requests per second that come from outside, usually at the leaves. A deeper exit is taken to
    answer better, so that everybody passes on what it can: λ_i^t = min(μ_i^max, λ_i^l + Σ_children λ_j^t).
    """

    parents: npt.ArrayLike
    exits: npt.ArrayLike
    arrivals: npt.ArrayLike
    capacity: npt.ArrayLike

    def __post_init__(self) -> None:
        parents, exits = _whole("parents", self.parents), _whole("exits", self.exits)
        arrivals, capacity = _rates("arrivals", self.arrivals), _rates("capacity", self.capacity)
        sizes = [len(parents), len(exits), len(arrivals), len(capacity)]
        ok = len(set(sizes)) == 1 and sizes[0] > 0
        require(ok, f"parents, exits, arrivals and capacity must have a value for each node, got {sizes} values")
        require(exits.min() >= 1, f"exits must count from 1, got {exits.min()}")
        total = arrivals.sum()
        require(0 < total < np.inf, f"arrivals must be finite and not all 0, got a total of {total:g}")
        _check_parents(parents, exits)
        for name, value in {"parents": parents, "exits": exits, "arrivals": arrivals, "capacity": capacity}.items():
            keep(self, name, value)

    @property
    def n(self) -> int:
        """How many nodes."""
        return len(np.asarray(self.parents))

    @property
    def order(self) -> list[int]:
        """All nodes, children before parents."""
        depths = _depths(np.asarray(self.parents))
        nodes: list[int] = np.argsort(-depths, kind="stable").tolist()
        return nodes

    def flows(self) -> Flows:
        """What comes in, is passed on and is served at every node."""
        parents, capacity = np.asarray(self.parents), np.asarray(self.capacity)
        incoming, transferred = np.array(self.arrivals, np.float64), np.zeros(self.n)
        for i in self.order:
            if parents[i] >= 0:
                transferred[i] = min(capacity[i], incoming[i])
                incoming[parents[i]] += transferred[i]
        return Flows(incoming, transferred, incoming - transferred)

    def rates(self, count: int | None = None) -> Floats:
        """Λ_e, what the nodes with exit e serve together, for exits 1 … count (the tree's deepest if left out)."""
        exits = np.asarray(self.exits)
        count = int(exits.max()) if count is None else count
        require(exits.max() <= count, f"the tree's exits must be among {count}, got exit {exits.max()}")
        return np.asarray(np.bincount(exits - 1, self.flows().served, count), np.float64)


SEVEN_NODES = (4, 2, 1)  # four devices, two edge servers and a cloud: the thesis' widths
SEVENTEEN_NODES = (12, 4, 1)  # and those of its table D.2
MIXES = (  # the share of all requests, in %, that exits 1, 2 and 3 serve: tables 5.1 and 5.2
    (80, 15, 5), (60, 30, 10), (45, 35, 20), (33, 33, 33), (20, 35, 45), (10, 30, 60), (5, 15, 80),
)  # fmt: skip
DATA_SHARES: Mapping[str, tuple[float, float, float]] = {  # the share of all data, in %, that each layer holds
    "equal": (100 / 3, 100 / 3, 100 / 3),  # table 5.1
    "biased": (14.3, 28.6, 57.1),  # table 5.2
    "highly-biased": (3.4, 19.9, 76.7),  # tables 5.3 and 5.4
}


def layered(widths: Sequence[int], mix: Sequence[float]) -> Tree:
    """widths[0] leaves with exit 1 under widths[1] nodes with exit 2, and so on; exit e serves mix[e - 1] of all.

    One request per second in total, spread evenly over the leaves; the nodes of a layer all serve the
    same share of what they get. `layered((4, 2, 1), (80, 15, 5))` is the thesis' tree of seven nodes.
    """
    shares, layers = np.asarray(mix, np.float64), len(widths)
    ok = layers > 0 and min(widths) >= 1 and all(above <= below for below, above in pairwise(widths))
    require(ok, f"widths must be at least 1 and must not grow towards the root, got {tuple(widths)}")
    ok = len(shares) == layers and bool((shares >= 0).all()) and 0 < shares.sum() < np.inf
    require(ok, f"mix must be {layers} shares of at least 0, not all 0, got {tuple(mix)}")
    starts = np.cumsum([0, *widths])
    parents = np.full(starts[-1], -1)
    for k in range(layers - 1):  # neighbours share a parent
        parents[starts[k] : starts[k + 1]] = starts[k + 1] + np.arange(widths[k]) * widths[k + 1] // widths[k]
    level = np.repeat(np.arange(layers), widths)
    left = np.append(np.cumsum(shares[::-1])[::-1], 0.0)  # what reaches each layer
    passed = np.divide(left[1:], left[:-1], out=np.zeros(layers), where=left[:-1] > 0)[level]
    arrivals = np.where(level == 0, 1 / widths[0], 0.0)
    load = arrivals.copy()
    for i in np.flatnonzero(parents >= 0).tolist():
        load[parents[i]] += load[i] * passed[i]
    return Tree(parents, level + 1, arrivals, load * passed)


def _check_parents(parents: Ids, exits: Ids) -> None:
    last = len(parents) - 1
    for i in np.flatnonzero((parents < -1) | (parents > last)):
        raise BadInput(f"a parent must be a node from 0 to {last}, or -1 for a root, got {parents[i]} for node {i}")
    for i in np.flatnonzero(_depths(parents) > len(parents)):
        raise BadInput(f"the parents must make a tree, without a cycle, got one through node {i}")
    for i in np.flatnonzero((parents >= 0) & (exits[parents] < exits)):
        got = f"exit {exits[parents[i]]} above exit {exits[i]} of node {i}"
        raise BadInput(f"a parent's exit must be at least as deep as its children's, got {got}")


def _depths(parents: Ids) -> Ids:
    """(n,) steps to the root; n + 1 for those that never get there."""
    depths, above = np.zeros(len(parents), np.int64), parents
    while (above >= 0).any() and depths.max() <= len(parents):
        depths += above >= 0
        above = np.where(above >= 0, parents[above], -1)
    return depths


def _whole(name: str, value: npt.ArrayLike) -> Ids:
    ids = np.array(value)
    ok = ids.ndim == 1 and ids.dtype.kind in "iu"
    require(ok, f"{name} must be a list of whole numbers, one for each node, got {value!r}")
    return ids.astype(np.int64)


def _rates(name: str, value: npt.ArrayLike) -> Floats:
    rates = np.array(value, np.float64)
    ok = rates.ndim == 1 and bool((rates >= 0).all())
    require(ok, f"{name} must be a list of rates of at least 0, one for each node, got {value!r}")
    return rates

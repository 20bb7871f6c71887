"""A tree, or any acyclic graph, of nodes that answer requests or pass them on: rates in, rates served.

Rodio's thesis, section 5.3.1: eqs. (5.2), (5.3) and (5.5), with the transfer rates of problem P2.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Floats, Ids, arguments_checked, keep, part, require


class Flows(NamedTuple):
    """Requests per second at every node, (n,) each."""

    incoming: Floats  # λ_i^l + Σ_children λ_j^t
    transferred: Floats  # λ_i^t, to the parents; 0 at a root
    served: Floats  # λ_i^s, the difference


@part
class Tree:
    """Node i answers with exit exits[i] and passes at most capacity[i] requests per second to its parent.

    `parents` holds node numbers from 0, and -1 for a root, which serves all that reaches it; several
    roots are several trees. `exits` count from 1 and never get shallower towards a root, but where `fractions`
    are given the strongest nodes may be anywhere. `arrivals` are the requests per second that come from outside,
    usually at the leaves. A deeper exit is taken to answer better, so that everybody passes on what it can:
    λ_i^t = min(μ_i^max, λ_i^l + Σ_children λ_j^t).
    With `fractions` r_i node i serves r_i of what reaches it instead, and passes on the rest, (5.2) and (5.3).
    An acyclic graph has several parents: `parents` is then (n, n), row i the shares of what node i passes on that
    go to each node, with sum 1, or 0 for a root.
    """

    parents: npt.ArrayLike
    exits: npt.ArrayLike
    arrivals: npt.ArrayLike
    capacity: npt.ArrayLike
    fractions: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        graph = np.ndim(self.parents) == 2
        parents = _shares(self.parents) if graph else _nodes(self.parents)
        exits = _whole("exits", self.exits)
        arrivals, capacity = _rates("arrivals", self.arrivals), _rates("capacity", self.capacity)
        sizes = [len(parents), len(exits), len(arrivals), len(capacity)]
        ok = len(set(sizes)) == 1 and sizes[0] > 0
        require(ok, f"parents, exits, arrivals and capacity must have a value for each node, got {sizes} values")
        require(exits.min() >= 1, f"exits must count from 1, got {exits.min()}")
        total = arrivals.sum()
        require(0 < total < np.inf, f"arrivals must be finite and not all 0, got a total of {total:g}")
        for name, value in {"parents": parents, "exits": exits, "arrivals": arrivals, "capacity": capacity}.items():
            keep(self, name, value)
        _check_links(self.links, exits, offload=self.fractions is None)
        if self.fractions is not None:
            keep(self, "fractions", _rates("fractions", self.fractions))
            self._check_fractions()

    def _check_fractions(self) -> None:
        r, root = np.asarray(self.fractions), ~self.links.any(axis=1)
        ok = r.shape == (self.n,) and bool((r <= 1).all()) and bool((r[root] == 1).all())
        require(ok, f"fractions must be {self.n} numbers in [0, 1], and 1 at a root, got {r.tolist()}")
        over = np.flatnonzero(self.flows().transferred > np.asarray(self.capacity) * (1 + 1e-9))[:5].tolist()
        require(not over, f"fractions must leave no more than the capacity to pass on, got more at nodes {over}")

    @property
    def links(self) -> Floats:
        """(n, n) the share of what node i passes on that goes to node j; rows of 0 are roots."""
        parents = np.asarray(self.parents)
        return parents if parents.ndim == 2 else np.asarray(parents[:, None] == np.arange(len(parents)), np.float64)

    @property
    def n(self) -> int:
        """How many nodes."""
        return len(np.asarray(self.parents))

    @property
    def order(self) -> list[int]:
        """All nodes, children before parents."""
        depths = _depths(self.links)
        nodes: list[int] = np.argsort(-depths, kind="stable").tolist()
        return nodes

    def flows(self) -> Flows:
        """What comes in, is passed on and is served at every node."""
        links, capacity, r = self.links, np.asarray(self.capacity), self.fractions
        incoming, transferred = np.array(self.arrivals, np.float64), np.zeros(self.n)
        for i in self.order:
            if links[i].any():
                passed = min(capacity[i], incoming[i]) if r is None else incoming[i] * (1 - np.asarray(r)[i])
                transferred[i] = passed
                incoming += links[i] * passed
        return Flows(incoming, transferred, incoming - transferred)

    def rates(self, count: int | None = None) -> Floats:
        """Λ_e, what the nodes with exit e serve together, for exits 1 … count (the tree's deepest if left out)."""
        exits = np.asarray(self.exits)
        count = int(exits.max()) if count is None else count
        allowed = f"the tree's exits must be from 1 to {count}, those of the network"
        require(exits.max() <= count, f"{allowed}, got exit {exits.max()}")
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


@arguments_checked
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


def _check_links(links: Floats, exits: Ids, *, offload: bool) -> None:
    for i in np.flatnonzero(_depths(links) > len(links)):
        raise BadInput(f"the parents must make a graph without a cycle, got one through node {i}")
    for i, j in np.argwhere((links > 0) & (exits[:, None] > exits) & offload):
        got = f"exit {exits[j]} above exit {exits[i]} of node {i}"
        raise BadInput(
            f"a parent's exit must be at least as deep as its children's, got {got}: else give fractions"
        )


def _depths(links: Floats) -> Ids:
    """(n,) steps of the longest way to a root; n + 1 for those that never get there."""
    above, depths = links > 0, np.zeros(len(links), np.int64)
    for _ in range(len(links) + 1):
        further = (above * (depths + 1)).max(axis=1)
        if np.array_equal(further, depths):
            break
        depths = further
    return depths


def _nodes(value: npt.ArrayLike) -> Ids:
    parents = _whole("parents", value)
    last = len(parents) - 1
    for i in np.flatnonzero((parents < -1) | (parents > last)):
        allowed = f"a parent must be a node from 0 to {last}, or -1 for a root"
        raise BadInput(f"{allowed}, got {parents[i]} for node {i}")
    return parents


def _shares(value: npt.ArrayLike) -> Floats:
    links = np.array(value, np.float64)
    sums = links.sum(axis=1)
    ok = links.shape == (len(links), len(links)) and bool((links >= 0).all())
    ok = ok and bool((np.isclose(sums, 1) | (sums == 0)).all())
    allowed = "parents must be one node each, or (n, n) shares whose rows have the sum 1, or 0 for a root"
    require(ok, f"{allowed}, got shape {links.shape} with row sums {sums.tolist()[:5]}")
    return links


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

"""Fed-CIS' sampling of nodes and exits: every node trains one exit a round.

Kaplan, Rodio, Si Salem, Xu and Neglia, Federated Learning for Cooperative Inference Systems: The Case of
Early Exit Networks, 2024 (arXiv 2405.04249), algorithm 1; Rodio's thesis, algorithm 6 and table 5.4.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Floats, Ids, Mask, Participation, keep, part, require

AWAY = 64  # streams away from the nodes', past those of samplings in between


@part
class ExitSampling:
    """A client is a pair (node, exit): a round has one pair of every node that is there.

    Node i trains each exit e < E_i with probability `p`, and E_i = exits[i] with the rest, 1 - (E_i - 1) p. Or `p`
    is nodes × exits, the p_{i,e} of Algorithm 6: a row with a sum below 1 leaves its node idle at times.
    Pairs of probability 0 are left out: with p = 0 every node trains its own exit only. A larger p lets
    the nodes with deep exits and much data help to train the shallow ones, at the cost of more variance.
    `nodes` says which nodes are there; all of them, always, if left out.
    """

    from_data: ClassVar[tuple[str, ...]] = ("exits", "p")  # what an experiment takes from its data
    exits: npt.ArrayLike
    p: npt.ArrayLike = 0.0
    nodes: Participation | None = None

    def __post_init__(self) -> None:
        exits, p = np.array(self.exits), np.array(self.p, np.float64)
        ok = exits.ndim == 1 and exits.size > 0 and exits.dtype.kind in "iu" and bool((exits >= 1).all())
        require(ok, f"exits must be whole numbers of at least 1, one for each node, got {self.exits!r}")
        deepest = int(exits.max())
        if p.ndim:
            ok = p.shape == (len(exits), deepest) and bool((p >= 0).all() and (p.sum(axis=1) <= 1 + 1e-9).all())
            ok = ok and bool(p.any()) and not p[np.arange(deepest) >= exits[:, None]].any()
            table = f"{len(exits)} × {deepest} probabilities"
            allowed = f"one number, or {table}, in each row with a sum of at most 1 and 0 beyond the node's exit"
        else:
            ok = float(p) >= 0 and (deepest - 1) * float(p) < 1
            rest = f"below 1/{deepest - 1}, for the deepest of {deepest} exits is trained with the rest"
            allowed = f"at least 0 and {rest if deepest > 1 else 'finite'}"
        require(ok, f"p must be {allowed}, got {self.p}")
        keep(self, "exits", exits)
        keep(self, "p", p if p.ndim else float(p))

    def pairs(self) -> Ids:
        """(n, 2) the node and the exit of each client: node by node, exits ascending."""
        return np.asarray(np.argwhere(self._chances() > 0) + np.array([0, 1]), np.int64)

    def probs(self, n: int) -> Array:
        node, exit = self._pairs(n).T
        there = 1.0 if self.nodes is None else self.nodes.probs(len(np.asarray(self.exits)))[node]
        return np.asarray(self._chances()[node, exit - 1] * there, np.float32)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        node, exit = self._pairs(n).T
        # (nodes, E + 1): a draw from edges[e - 1] to edges[e] is for exit e
        edges = np.pad(self._chances().cumsum(axis=1), ((0, 0), (1, 0)))
        low, high = edges[node, exit - 1], edges[node, exit]
        draws = np.random.Generator(cast(Any, rng.bit_generator).jumped(AWAY))
        there = None if self.nodes is None else self.nodes.rows(len(edges), rng)
        while True:
            u = draws.random(len(edges))[node]
            row = (low <= u) & (u < high)
            yield row if there is None else row & next(there)[node]

    def _chances(self) -> Floats:
        """(nodes, E) p_{i,e}."""
        own, p = np.asarray(self.exits)[:, None], np.asarray(self.p, np.float64)
        e = np.arange(1, own.max() + 1)
        return p if p.ndim else np.where(e < own, p, np.where(e == own, 1 - (own - 1) * p, 0.0))

    def _pairs(self, n: int) -> Ids:
        pairs = self.pairs()
        require(len(pairs) == n, f"{len(pairs)} pairs of node and exit need as many clients, got {n}")
        return pairs

"""Fed-CIS' sampling of nodes and exits: every node trains one exit a round.

Kaplan, Rodio, Si Salem, Xu and Neglia, Federated Learning for Cooperative Inference Systems: The Case of
Early Exit Networks, 2024 (arXiv 2405.04249), algorithm 1; Rodio's thesis, algorithm 6 and table 5.4.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Ids, Mask, Participation, keep, part, require

AWAY = 64  # streams away from the nodes', past those of samplings in between


@part
class ExitSampling:
    """A client is a pair (node, exit): a round has one pair of every node that is there.

    Node i trains each exit e < E_i with probability `p`, and E_i = exits[i] with the rest, 1 - (E_i - 1) p.
    Pairs of probability 0 are left out: with p = 0 every node trains its own exit only. A larger p lets
    the nodes with deep exits and much data help to train the shallow ones, at the cost of more variance.
    `nodes` says which nodes are there; all of them, always, if left out.
    """

    from_data: ClassVar[tuple[str, ...]] = ("exits", "p")  # what an experiment takes from its data
    exits: npt.ArrayLike
    p: float = 0.0
    nodes: Participation | None = None

    def __post_init__(self) -> None:
        exits = np.array(self.exits)
        ok = exits.ndim == 1 and exits.size > 0 and exits.dtype.kind in "iu" and bool((exits >= 1).all())
        require(ok, f"exits must be whole numbers of at least 1, one for each node, got {self.exits!r}")
        deepest = int(exits.max())
        ok = self.p >= 0 and (deepest - 1) * self.p < 1
        rest = f"below 1/{deepest - 1}, for the deepest of {deepest} exits is trained with the rest"
        most = rest if deepest > 1 else "finite"
        require(ok, f"p must be at least 0 and {most}, got {self.p}")
        keep(self, "exits", exits)

    def pairs(self) -> Ids:
        """(n, 2) the node and the exit of each client: node by node, exits ascending."""
        exits = np.asarray(self.exits).tolist()
        first = [1] * len(exits) if self.p > 0 else exits
        return np.array([(i, e) for i, own in enumerate(exits) for e in range(first[i], own + 1)])

    def probs(self, n: int) -> Array:
        node, exit = self._pairs(n).T
        own = np.asarray(self.exits)[node]
        p = np.where(exit < own, self.p, 1 - (own - 1) * self.p)
        there = 1.0 if self.nodes is None else self.nodes.probs(len(np.asarray(self.exits)))[node]
        return (p * there).astype(np.float32)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        node, exit = self._pairs(n).T
        own, count = np.asarray(self.exits)[node], len(np.asarray(self.exits))
        # a draw in [0, p) is exit 1, in [p, 2p) exit 2, …
        low, high = (exit - 1) * self.p, np.where(exit < own, exit * self.p, 1.0)
        draws = np.random.Generator(cast(Any, rng.bit_generator).jumped(AWAY))
        there = None if self.nodes is None else self.nodes.rows(count, rng)
        while True:
            u = draws.random(count)[node]
            row = (low <= u) & (u < high)
            yield row if there is None else row & next(there)[node]

    def _pairs(self, n: int) -> Ids:
        pairs = self.pairs()
        require(len(pairs) == n, f"{len(pairs)} pairs of node and exit need as many clients, got {n}")
        return pairs

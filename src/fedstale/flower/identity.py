"""Who a node is: a name that is the same when a server or a simulation is started again.

Flower draws the id of a node anew at every start of a simulation. There the nodes are registered in the order of
their partitions, so that a node's place in this order is its partition id. In a deployment a SuperNode is known by
its public key; if it has none, Flower makes one at every start.
"""

import hashlib
import logging
from collections.abc import Iterable
from typing import Any

log = logging.getLogger("flwr")
CHANGED = (
    "%s. If these are the same machines, their memory is lost: start every SuperNode with a key of its own "
    "(--auth-supernode-private-key). Without one it is another client after every start."
)
SIMULATED = 1e300  # seconds between the heartbeats of a simulated node: Flower's way to say never


class Identities:
    """The names of the nodes of one run."""

    def __init__(self, resumed: bool = False) -> None:
        """`resumed`: the clients of the next round are those of a saved state, if they have kept their names."""
        self.names: dict[int, str] = {}
        self.resumed, self.warned = resumed, False

    def of(self, grid: Any, asked: Iterable[int]) -> dict[int, str]:
        """Node → name of all nodes that are online or asked; a node keeps its name to the end of the run."""
        nodes = {node.node_id: node for node in grid.get_nodes()}
        simulated = (n for n in nodes.values() if n.heartbeat_interval >= SIMULATED)
        order = sorted(simulated, key=lambda n: n.registered_at)
        partitions = {node.node_id: f"partition-{k}" for k, node in enumerate(order)}
        taken = set(self.names.values())
        for node in sorted({*nodes, *asked} - {*self.names}, key=lambda i: (partitions.get(i, "").rjust(30), i)):
            name = partitions.get(node) or _key_name(nodes.get(node)) or f"node-{node}"
            self.names[node] = f"node-{node}" if name in taken else name
            taken.add(self.names[node])
        here = {*nodes, *asked}
        return {node: name for node, name in self.names.items() if node in here}

    def compare(self, before: Iterable[str], now: set[str]) -> None:
        """Warn, once, if the clients that are online now seem to have had other names before."""
        known, resumed, self.resumed = {*before}, self.resumed, False
        new, gone = len(now - known), len(known - now)
        if resumed and new and not now & known:
            what = f"none of the {gone} clients of the saved state is online, but {new} others are"
        elif not resumed and 0 < new <= gone:
            what = f"{new} clients are new, and {gone} clients are not online any more"
        else:
            return
        if not self.warned:
            log.warning(CHANGED, what)
        self.warned = True


def _key_name(node: Any) -> str:
    return f"key-{hashlib.sha256(node.public_key).hexdigest()[:32]}" if node is not None and node.public_key else ""

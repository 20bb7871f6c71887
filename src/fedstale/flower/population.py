"""All clients that a Flower strategy knows of, who a node is, and what the next round depends on.

Flower draws the id of a node anew at every start of a simulation. There the nodes are registered in the order of
their partitions, so that a node's place in this order is its partition id. In a deployment a SuperNode is known by
its public key; if it has none, Flower makes one at every start.
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedstale.core.abilities import WithTruth
from fedstale.core.hooks import hooks_of, layers
from fedstale.core.parts import require
from fedstale.core.protocols import Estimator, Server, Strategy
from fedstale.core.records import Array, Checkpoint, Floats, Ids, Mask
from fedstale.defence import Defence
from fedstale.flower.federation.state.resize import resize
from fedstale.flower.federation.state.server_state import (
    Cohorts,
    Rules,
    ServerState,
    private,
    require_asynchronous,
    require_root,
)
from fedstale.memory.memory import KeepsMemory
from fedstale.participation.clock import Pace
from fedstale.participation.estimators import Intervals
from fedstale.privacy.ledger import Privacy
from fedstale.registry import ESTIMATORS, recipe
from fedstale.simulate import require_kind

log = logging.getLogger("flwr")
CHANGED = (
    "%s. If these are the same machines, their memory is lost: start every SuperNode with a key of its own "
    "(--auth-supernode-private-key). Without one it is another client after every start."
)
SIMULATED = 1e300  # seconds between the heartbeats of a simulated node: Flower's way to say never


class Clients(NamedTuple):
    """What is known of each client, (n,) each."""

    weights: Floats  # of its last reply, usually its number of samples; NaN before the first
    losses: Floats  # of its last reply; NaN if it never told one
    seen: Ids  # the last round in which it was online

    @classmethod
    def empty(cls, n: int) -> "Clients":
        return cls(np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.int64))


class Population(NamedTuple):
    """The clients, and the state after the last round; position k of every array is client names[k]."""

    names: tuple[str, ...]
    clients: Clients
    state: ServerState  # whose client numbers are given in the order in which clients join

    @property
    def checkpoint(self) -> Checkpoint:
        return self.state.checkpoint

    @property
    def weights(self) -> Array:
        """(n,) a_i; a client that was never heard counts as much as the others do on average."""
        told = self.clients.weights
        known = told[np.isfinite(told)]
        weights = np.where(np.isfinite(told), told, known.mean() if len(known) else 1.0)
        return np.asarray(weights / weights.sum(), np.float32)

    def heard(self, positions: Ids, weights: Sequence[float], losses: Sequence[float]) -> "Population":
        """The population after these clients have said their weights and losses."""
        now = Clients(self.clients.weights.copy(), self.clients.losses.copy(), self.clients.seen)
        now.weights[positions], now.losses[positions] = weights, losses
        return self._replace(clients=now)

    def at(self, checkpoint: Checkpoint) -> "Population":
        """The same clients with another checkpoint."""
        return self._replace(state=self.state._replace(checkpoint=checkpoint))

    def resized(self, rules: Rules, ids: Ids, names: tuple[str, ...]) -> "Population":
        """The population of these client numbers: rows of the others are gone, new clients start from nothing."""
        clients = resize(self.clients, Clients.empty, self.state.ids, ids)
        return Population(names, clients, rules.with_roster(self.state, ids, self.state.roster))


def enter(rules: Rules, known: Population | None, names: Sequence[str], params: Array) -> Population:
    """The population with these clients online in the next round; those who are new join it."""
    if known is None:
        known = Population(tuple(names), Clients.empty(len(names)), rules.initial(len(names), params))
    before, online = {*known.names}, {*names}
    new = [name for name in names if name not in before]
    if new:
        ids = known.state.ids
        known = known.resized(rules, np.append(ids, ids[-1] + 1 + np.arange(len(new))), (*known.names, *new))
    known.clients.seen[[k for k, name in enumerate(known.names) if name in online]] = known.checkpoint.t + 1
    return known


def forget(rules: Rules, known: Population, rounds: int) -> Population:
    """The population without the clients that were not online in so many rounds; their rows are gone."""
    gone: Mask = known.clients.seen < known.checkpoint.t + 1 - rounds
    if not gone.any() or gone.all():
        return known
    names = tuple(name for name, left in zip(known.names, gone.tolist(), strict=True) if not left)
    return known.resized(rules, known.state.ids[~gone], names)


class Identities:
    """The names of the nodes of one run, which are the same when a server or a simulation is started again."""

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


def rules(
    rule: str | Strategy, estimator: str | Estimator | None, server: Server, defence: Defence | bool | None = None,
    pace: Pace | None = None, privacy: Privacy | None = None,
) -> Rules:  # fmt: skip
    """The rules that a user has chosen by name or as objects; refuses what clients of Flower cannot do."""
    if isinstance(rule, str):
        chosen = recipe(rule)
        rule, estimator = chosen.strategy, estimator or chosen.estimator
    found = ESTIMATORS.find(estimator, "estimator")() if isinstance(estimator, str) else estimator
    belief: Estimator = found or Intervals()
    judge = Defence() if defence is True else defence or None
    for name, value in (("strategy", rule), ("estimator", belief), ("server", server)):
        require_kind(name, value)
    for name, part in (("pace", pace), ("defence", judge), ("privacy", privacy)):
        if part is not None:
            require_kind(name, part)
    hooks = hooks_of(rule)
    ok = not (hooks.drift or hooks.starts or hooks.needs_last_gradient)
    require(ok, f"{rule} changes how clients train, which a strategy of Flower cannot: choose another rule")
    ok = not (isinstance(belief, WithTruth) and belief.needs_truth)
    require(ok, "the estimator Known() needs p, one probability per client: a federation does not know them")
    ok = not any(isinstance(part, KeepsMemory) and part.memory.folder is not None for part in layers(rule))
    require(ok, f"the memory of a Flower strategy is in RAM: it must have no folder, got {rule}")
    if pace is not None:
        require_asynchronous(pace, rule, bool(defence))
    require_root(judge)
    if privacy is not None:
        rule = private(rule, privacy, judge, pace)
    return Rules(rule, Cohorts(belief), server, judge)

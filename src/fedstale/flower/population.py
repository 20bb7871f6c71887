"""All clients that a Flower strategy knows of, and what the next round depends on."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedstale.core import (
    Array,
    Checkpoint,
    Estimator,
    Floats,
    Ids,
    Mask,
    Server,
    Strategy,
    WithTruth,
    hooks_of,
    layers,
    require,
)
from fedstale.defence import Defence
from fedstale.estimators import Intervals
from fedstale.flower.federation.state.cohorts import Cohorts
from fedstale.flower.federation.state.resize import resize
from fedstale.memory.memory import KeepsMemory
from fedstale.registry import ESTIMATORS, recipe
from fedstale.simulate import require_kind


class Clients(NamedTuple):
    """What is known of each client, (n,) each."""

    weights: Floats  # of its last reply, usually its number of samples; NaN before the first
    losses: Floats  # of its last reply; NaN if it never told one
    seen: Ids  # the last round in which it was online

    @classmethod
    def empty(cls, n: int) -> "Clients":
        return cls(np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.int64))


class Population(NamedTuple):
    """The clients, and the checkpoint of the last round; position k of every array is client names[k]."""

    names: tuple[str, ...]
    clients: Clients
    checkpoint: Checkpoint

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


class Rules(NamedTuple):
    """The algorithm of a strategy."""

    strategy: Strategy
    estimator: Cohorts
    server: Server
    defence: Defence | None = None

    def enter(self, known: Population | None, names: Sequence[str], params: Array) -> Population:
        """The population with these clients online in the next round; those who are new join it."""
        d = len(params)
        if known is None:
            n, state = len(names), self.strategy.init(len(names), d)
            start = Checkpoint(0, params, state, self.estimator.init(n), self.server.init(d), channel=None)
            start = start._replace(defence=self.defence.init(n, d) if self.defence else None)
            known = Population(tuple(names), Clients.empty(n), start)
        before, online = {*known.names}, {*names}
        new = [name for name in names if name not in before]
        if new:
            known = self._joined(known, new, d)
        known.clients.seen[[k for k, name in enumerate(known.names) if name in online]] = known.checkpoint.t + 1
        return known

    def _joined(self, known: Population, new: Sequence[str], d: int) -> Population:
        old, now, all_names = np.arange(len(known.names)), known.checkpoint, (*known.names, *new)
        state = resize(now.state, lambda n: self.strategy.init(n, d), old, np.arange(len(all_names)))
        belief = now.belief.resized(old, np.arange(len(all_names)))
        clients = resize(known.clients, Clients.empty, old, np.arange(len(all_names)))
        now = self._watching(now, old, np.arange(len(all_names)))
        return Population(all_names, clients, now._replace(state=state, belief=belief))

    def _watching(self, now: Checkpoint, old: Ids, new: Ids) -> Checkpoint:
        """The checkpoint of clients `old` with a defence that watches clients `new`."""
        if (defence := self.defence) is None:
            return now
        return now._replace(defence=resize(now.defence, lambda n: defence.init(n, len(now.params)), old, new))

    def forget(self, known: Population, rounds: int) -> Population:
        """The population without the clients that were not online in so many rounds; their rows are gone."""
        now = known.checkpoint
        gone: Mask = known.clients.seen < now.t + 1 - rounds
        if not gone.any() or gone.all():
            return known
        old, stay = np.arange(len(gone)), np.flatnonzero(~gone)
        state = resize(now.state, lambda n: self.strategy.init(n, len(now.params)), old, stay)
        belief = now.belief.resized(old, stay)
        clients = resize(known.clients, Clients.empty, old, stay)
        names = tuple(name for name, left in zip(known.names, gone.tolist(), strict=True) if not left)
        return Population(names, clients, self._watching(now, old, stay)._replace(state=state, belief=belief))


def rules(
    rule: str | Strategy, estimator: str | Estimator | None, server: Server, defence: Defence | None = None
) -> Rules:
    """The rules that a user has chosen by name or as objects; refuses what clients of Flower cannot do."""
    if isinstance(rule, str):
        chosen = recipe(rule)
        rule, estimator = chosen.strategy, estimator or chosen.estimator
    belief: Estimator = (
        ESTIMATORS.find(estimator, "estimator")() if isinstance(estimator, str) else estimator or Intervals()
    )
    for name, value in (("strategy", rule), ("estimator", belief), ("server", server)):
        require_kind(name, value)
    hooks = hooks_of(rule)
    ok = not (hooks.drift or hooks.starts or hooks.needs_last_gradient)
    require(ok, f"{rule} changes how clients train, which a strategy of Flower cannot: choose another rule")
    ok = not (isinstance(belief, WithTruth) and belief.needs_truth)
    require(ok, "the estimator Known() needs p, one probability per client: a federation does not know them")
    ok = not any(isinstance(part, KeepsMemory) and part.memory.folder is not None for part in layers(rule))
    require(ok, f"the memory of a Flower strategy is in RAM: it must have no folder, got {rule}")
    if defence is not None:
        require_kind("defence", defence)
    return Rules(rule, Cohorts(belief), server, defence)

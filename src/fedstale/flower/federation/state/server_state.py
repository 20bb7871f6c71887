"""Everything that the next round depends on, of a federation and of a Flower strategy alike."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core.abilities import EstimatesMixing
from fedstale.core.hooks import hooks_of
from fedstale.core.parts import require
from fedstale.core.protocols import Estimator, Server, Strategy
from fedstale.core.records import Array, Availability, Checkpoint, Floats, Ids, Mask, State
from fedstale.defence import Defence
from fedstale.flower.federation.state.resize import resize
from fedstale.lab.probes import Traced
from fedstale.lab.runs.codec import children, rebuilt
from fedstale.participation.clock import Pace
from fedstale.privacy.ledger import Privacy
from fedstale.privacy.noise import Accounted, Noised, deployed
from fedstale.privacy.sums import Summed

Counts = npt.NDArray[np.int64]


class ClientCounts(NamedTuple):
    """What is counted for each client since it joined, (n,) each."""

    rounds: Counts  # closed rounds
    asked: Counts
    heard: Counts
    rejected: Counts
    last: Counts  # the round it was last heard in, 0 before the first
    realised: npt.NDArray[np.float64]  # sum of its realised weights
    target: npt.NDArray[np.float64]  # sum of its a_i

    @classmethod
    def empty(cls, n: int) -> "ClientCounts":
        """The counts of n clients that have just joined."""
        rounds, asked, heard, rejected, last = np.zeros((5, n), np.int64)
        return cls(rounds, asked, heard, rejected, last, realised=np.zeros(n), target=np.zeros(n))


class ServerState(NamedTuple):
    """A simulation's checkpoint, and what a federation knows besides: its clients and their counts."""

    checkpoint: Checkpoint
    counts: ClientCounts
    ids: Ids  # (n,) client numbers, ascending: position k of every array is client ids[k]
    roster: int  # the version of the roster that `ids` are from
    voids: int  # rounds so far that were void because the infrastructure failed

    @property
    def traced(self) -> Traced | None:
        """The weights of the last step; none where clients keep their own memories, and the server sums only."""
        rule = self.checkpoint.state
        rule = rule.inner if isinstance(rule, Accounted) else rule
        return rule if isinstance(rule, Traced) else None

    def positions(self, clients: Iterable[int]) -> Ids:
        """The positions of these clients, ascending."""
        return np.flatnonzero(np.isin(self.ids, np.array(sorted(clients), np.int64)))


class Cohort(NamedTuple):
    """The belief about clients that joined in the same round."""

    size: int
    belief: Any


@dataclass(frozen=True)
class Beliefs:
    """The beliefs about all cohorts; clients are in the order in which they joined."""

    estimator: Estimator
    cohorts: tuple[Cohort, ...]

    def split(self, values: Mask) -> list[Mask]:
        """The values (n,) of each cohort."""
        return np.split(values, np.cumsum([c.size for c in self.cohorts])[:-1])

    def resized(self, old: Ids, new: Ids) -> "Beliefs":
        """The beliefs about clients `new` instead of `old`: newcomers are one more cohort, at the end."""
        kept = []
        for cohort, stays in zip(self.cohorts, self.split(np.isin(old, new)), strict=True):
            stay, size = np.flatnonzero(stays), cohort.size
            if len(stay):
                belief = resize(cohort.belief, self.estimator.init, np.arange(size), stay)
                kept.append(Cohort(len(stay), belief))
        newcomers = len(np.setdiff1d(new, old))
        joined = [Cohort(newcomers, self.estimator.init(newcomers))] if newcomers else []
        return Beliefs(self.estimator, (*kept, *joined))

    def saved(self) -> tuple[Cohort, ...]:
        return self.cohorts

    def restored(self, saved: Any) -> "Beliefs":
        """The beliefs that were saved, however many cohorts there were; older versions saved a single belief."""
        if not (isinstance(saved, tuple) and all(isinstance(c, tuple) and len(c) == 2 for c in saved)):
            saved = [(sum(c.size for c in self.cohorts), saved)]
        cohorts = (Cohort(size, _typed(belief, self.estimator.init(size))) for size, belief in saved)
        return Beliefs(self.estimator, tuple(cohorts))


def _typed(plain: Any, like: Any) -> Any:
    """What was saved, with the types of `like`."""
    parts, kinds = children(plain), dict(children(like) or ())
    if parts is None or not kinds:
        return plain
    return rebuilt(like, {key: _typed(value, kinds.get(key)) for key, value in parts})


@dataclass(frozen=True)
class Cohorts:
    """An estimator for clients that join at different times: the same for every cohort that joined together.

    A belief counts rounds from its first one, and a client that joins in round 30 has not missed 29 rounds.
    """

    estimator: Estimator

    def init(self, n: int) -> Beliefs:
        return Beliefs(self.estimator, (Cohort(n, self.estimator.init(n)),))

    def probs(self, belief: Beliefs) -> Array:
        return np.concatenate([self.estimator.probs(c.belief) for c in belief.cohorts])

    def mixing(self, belief: Beliefs) -> Array:
        if not isinstance(self.estimator, EstimatesMixing):
            return np.zeros(sum(c.size for c in belief.cohorts), np.float32)
        return np.concatenate([self.estimator.mixing(c.belief) for c in belief.cohorts])

    def observe(self, belief: Beliefs, heard: Mask) -> Beliefs:
        parts = zip(belief.cohorts, belief.split(heard), strict=True)
        observed = (Cohort(c.size, self.estimator.observe(c.belief, part)) for c, part in parts)
        return Beliefs(self.estimator, tuple(observed))


ROOT = "give a function from parameters to gradients by label, such as fs.tasks.Root(Net, x, y)"


class Rules(NamedTuple):
    """The algorithm: a strategy, an estimator, a server rule, and a defence against liars."""

    strategy: Strategy
    estimator: Estimator
    server: Server
    defence: Defence | None = None

    @property
    def plain(self) -> Estimator:
        """The estimator of one cohort of clients, as it was chosen."""
        return self.estimator.estimator if isinstance(self.estimator, Cohorts) else self.estimator

    def initial(self, n: int, params: Array, buffers: Floats | None = None) -> ServerState:
        """The state before round 1, with n clients."""
        d = len(params)
        memory, belief = self.strategy.init(n, d), self.estimator.init(n)
        start = Checkpoint(0, params, memory, belief, self.server.init(d), channel=None, buffers=buffers)
        start = start._replace(defence=self.defence.init(n, d) if self.defence else None)
        return ServerState(start, ClientCounts.empty(n), np.arange(n), 0, 0)

    def with_roster(self, state: ServerState, ids: Ids, version: int) -> ServerState:
        """The state for another roster: rows of clients that left are gone, new clients start from nothing."""
        now, old = state.checkpoint, state.ids
        if not np.array_equal(old, ids):
            memory = resize(now.state, lambda n: self.strategy.init(n, len(now.params)), old, ids)
            now = now._replace(state=memory, belief=now.belief.resized(old, ids))
            if (defence := self.defence) is not None:
                watch = resize(now.defence, lambda n: defence.init(n, len(now.params)), old, ids)
                now = now._replace(defence=watch)
            state = state._replace(counts=resize(state.counts, ClientCounts.empty, old, ids))
        if isinstance(rule := self.strategy, Summed) and rule.ring is None:  # other weights: memories begin anew
            now = now._replace(state=rule.forget(now.state, np.arange(len(ids)))._replace(unit=float(len(ids))))
        return state._replace(checkpoint=now, ids=ids, roster=version)

    def select(self, now: Checkpoint, available: Ids, losses: Array, weights: Array) -> tuple[Ids, State]:
        """Which of the available clients train, and the strategy's state after choosing.

        All of them, unless it selects by their losses, or some have no budget of privacy left.
        """
        hooks, estimator, none = hooks_of(self.strategy), self.estimator, np.zeros(len(weights), np.float32)
        if hooks.admit is not None:
            found, state = hooks.admit(now.state, available, weights, estimator.probs(now.belief))
            if self.privacy is not None:  # without clients that may be asked every step would be noise alone
                self.privacy.check(state.ledger)
            return found, state
        if hooks.select is None:
            return available, now.state
        mixing = estimator.mixing(now.belief) if isinstance(estimator, EstimatesMixing) else none
        a = Availability(now.t + 1, available, losses, weights, estimator.probs(now.belief), mixing)
        return hooks.select(now.state, a)

    def inside(self, around: Callable[[Strategy], Strategy]) -> "Rules":
        """The rules with something around the strategy, inside of its noise if it has any."""
        rule = self.strategy
        made = replace(rule, strategy=around(rule.strategy)) if isinstance(rule, Noised) else around(rule)
        return self._replace(strategy=made)

    @property
    def privacy(self) -> Privacy | None:
        """The noise and the budgets, if there are any."""
        return self.strategy.privacy if isinstance(self.strategy, Noised) else None


def require_asynchronous(pace: Pace, rule: Strategy, judged: bool) -> None:
    """Refuse what a server that waits for nobody cannot do."""
    require(not pace.rule(1).together, f"a pace is Buffer or Ticks, got {pace}: rounds are played without a pace")
    ok = hooks_of(rule).select is None
    require(ok, f"{rule} selects clients by their losses, which a server that waits for nobody does not know")
    ok = hooks_of(rule).drift is None
    require(ok, f"{rule} changes local gradients by what the server knows now, not without rounds")
    same = "a defence compares updates from the same parameters, which differ with a pace: turn it off"
    require(not judged, same)


def require_root(defence: Defence | None) -> None:
    """Refuse a number of root samples: only a simulation has the clients' samples to copy."""
    ok = defence is None or not isinstance(defence.root, int)
    require(ok, f"defence.root is a number in simulations only: {ROOT}, got {defence and defence.root}")


def private(rule: Strategy, privacy: Privacy, defence: Defence | None, pace: Pace | None) -> Noised:
    """The rule with noise and budgets for real clients; refuses what would break the guarantee."""
    require(defence is None, "privacy and a defence do not go together: what is refused tells about a client")
    require(
        pace is None, "privacy needs rounds, in which clients are admitted by their budgets: leave out the pace"
    )
    return deployed(rule, privacy)

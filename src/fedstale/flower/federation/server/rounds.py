"""The round loop of a federation: the round of `simulate`, with real clients.

A round ends in one of two ways. Either it closes: clients without a good reply were absent or rejected, the
strategy steps, the estimator observes, and the state is committed. Or it is void because the infrastructure
failed: nothing is observed, nothing changes, and the same round is tried again. Otherwise an outage of the
server would look like absence of the clients, and every estimate of p_i would be too low.
"""

import json
import logging
import math
import secrets
from collections.abc import Callable, Generator, Mapping, Set
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, Floats, Ids, State, hooks_of, require
from fedstale.core.rng import stream
from fedstale.flower.federation.protocol.exchange import Exchange
from fedstale.flower.federation.protocol.link import Link, Order, Share, Void
from fedstale.flower.federation.server.close import RoundReplies, close, opened_round
from fedstale.flower.federation.server.diagnostics import scores
from fedstale.flower.federation.settings import Settings
from fedstale.flower.federation.state.ledger import Ledger
from fedstale.flower.federation.state.manifest import read_manifest
from fedstale.flower.federation.state.roster import Roster
from fedstale.flower.federation.state.server_state import Cohorts, Rules, ServerState
from fedstale.lab.probes import Tracer
from fedstale.lab.runs.metrics import TRACED
from fedstale.lab.spec import describe
from fedstale.participation.clock import Pace
from fedstale.privacy.sums import Summed
from fedstale.registry import STRATEGIES

log = logging.getLogger("fedstale.flower.federation")
PAUSE = 30.0  # seconds, the longest wait after a void round


Start = Callable[[int], Array | tuple[Array, Floats]]  # seed → parameters, or parameters and buffers, of round 0


class Stalled(Exception):
    """Too many void rounds in a row; what was committed is safe."""


class ClosedRound(NamedTuple):
    """A committed round."""

    state: ServerState
    line: dict[str, Any]  # as in metrics.jsonl


def started(start: Start, seed: int) -> tuple[Array, Floats | None]:
    """The parameters of round 0, and the buffers of a model whose buffers training changes."""
    given = start(seed)
    params, buffers = given if isinstance(given, tuple) else (given, None)
    vectors = np.array(params, np.float32), None if buffers is None else np.array(buffers, np.float64)
    ok = all(v is None or (v.ndim == 1 and bool(np.isfinite(v).all())) for v in vectors)
    require(ok, "the start must be a finite flat vector of parameters, or that and one of buffers")
    return vectors


class Server:
    """The server of a federation: plays the rounds that are not committed yet."""

    def __init__(self, settings: Settings, link: Link, roster: Callable[[], Roster], start: Start) -> None:
        """`roster()` is called before every round; `start(seed)` returns the parameters and buffers of round 0."""
        self.settings, self.link, self.roster, self.how = settings, link, roster, settings.file.round
        rules, (params, buffers) = settings.rules, started(start, settings.file.seed)
        rules = rules._replace(estimator=Cohorts(rules.estimator))  # a client's rounds count from when it joined
        size = f"{len(params)}" if buffers is None else f"{len(params)}-{len(buffers)}"
        run, committed = f"{settings.run}-{size}", read_manifest(settings.state)
        traced = str(committed["run"]).endswith("t") if committed else len(roster().members) <= TRACED
        if traced and not isinstance(
            rules.strategy, Summed
        ):  # the state holds realised weights; a federation that grows keeps its choice
            rules, run = rules.inside(Tracer), run + "t"
        ok = rules.privacy is None or buffers is None
        require(ok, 'privacy does not cover averaged buffers: use buffers = "frozen" or "local"')
        ok = not isinstance(rules.strategy, Summed) or buffers is None
        require(ok, 'averaged buffers are not summed with memory = "clients": use buffers = "frozen" or "local"')
        self.rules: Rules = rules
        self.exchange = Exchange(link, self.how)
        self.ledger = Ledger(settings.state, run, lambda n: self.rules.initial(n, params, buffers))

    def play(self) -> Generator[ClosedRound, None, None]:
        """Play the rounds after the last committed one; each is committed before it is yielded."""
        with self.ledger.locked():
            state = self.ledger.load() or self._first()
            while state.checkpoint.t < self.settings.file.rounds:
                closed = self._next(state)
                state = closed.state
                yield closed
            self.exchange.give_up(self.exchange.flying)

    def _first(self) -> ServerState:
        roster = self.roster()
        require(len(roster.members) > 0, "the roster must have a client, got none")
        state = self.ledger.initial(len(roster.members))._replace(ids=roster.ids, roster=roster.version)
        self.ledger.commit(state, {})
        return state

    def _next(self, state: ServerState) -> ClosedRound:
        """Try the next round until it closes."""
        for attempt in range(self.how.retries + 1):
            roster = self.roster()
            if roster.version != state.roster:
                log.info("roster %d: clients %s", roster.version, roster.ids.tolist())
                state = self.rules.with_roster(state, roster.ids, roster.version)
            try:
                return self._round(state, roster)
            except Void as why:
                log.warning("round %d is void: %s", state.checkpoint.t + 1, why)
                state = state._replace(voids=state.voids + 1)
                self.link.sleep(min(2.0**attempt, PAUSE))
        raise Stalled(f"round {state.checkpoint.t + 1} was void {self.how.retries + 1} times in a row")

    def _round(self, state: ServerState, roster: Roster) -> ClosedRound:
        nodes = self._present(roster)
        began = self.link.now()
        if self.settings.pace is not None:
            return self._close(state, roster, nodes, self._step(state, roster, self.settings.pace))
        available, chosen, remembered, rejected = self._select(state, roster, nodes)
        orders = self._shared(state, roster, chosen, self._orders(state, nodes, chosen, train=True))
        outcome = self.exchange(orders, self.how.target or None)
        late = tuple(sorted(self.exchange.late)) if self.how.target else ()
        good, quorum = len(outcome.accepted), self.how.quorum
        if good < quorum:
            raise Void(f"{good} good replies, the quorum is {quorum}; rejected: {outcome.rejected or 'none'}")
        outcome = outcome._replace(rejected=rejected | outcome.rejected)
        idle, seconds = np.setdiff1d(available, chosen), self.link.now() - began
        state = state._replace(checkpoint=state.checkpoint._replace(state=remembered))
        brought = RoundReplies(roster.weights, outcome, chosen, idle, seconds, late=late)
        return self._close(state, roster, nodes, brought)

    def _step(self, state: ServerState, roster: Roster, pace: Pace) -> RoundReplies:
        """What has come when a step is due without rounds; who is at work stays so, unless it left the roster."""
        began, rng = self.link.now(), stream(self.settings.file.seed, "ask", state.checkpoint.t + 1)
        flying, members = self.exchange.flying, {*roster.ids.tolist()}
        self.exchange.give_up([handle for handle, order in flying.items() if order.client not in members])

        def ask(busy: Set[int]) -> list[Order]:
            nodes = self._online(roster)
            idle = state.positions({*nodes} - busy)
            k = pace.rule(len(nodes)).most - len(flying)
            some = np.sort(rng.choice(idle, k, replace=False)) if k < len(idle) else idle
            return self._orders(state, nodes, some, train=True) if k > 0 else []

        outcome, orders = self.exchange.step(ask, pace)
        asked, seconds = state.positions(orders), self.link.now() - began
        return RoundReplies(roster.weights, outcome, asked, asked[:0], seconds, orders=orders)

    def _close(
        self, state: ServerState, roster: Roster, nodes: Mapping[int, int], brought: RoundReplies
    ) -> ClosedRound:
        """Close and commit the round."""
        after, line = close(state, self.rules, self.settings.local, brought)
        line |= self._scores(after, roster, nodes)
        self.ledger.commit(after, line)
        for client, reason in line["rejected"].items():
            log.warning("round %d: client %s rejected: %s", line["round"], client, reason)
        log.info("round %d: heard %s, absent %s", line["round"], line["heard"], line["absent"])
        return ClosedRound(after, line)

    def _scores(self, after: ServerState, roster: Roster, nodes: Mapping[int, int]) -> dict[str, Any]:
        """What the clients that are there say of the model after this round, if it is time to ask them."""
        every, t = self.how.evaluate, after.checkpoint.t
        if not every or (t % every and t != self.settings.file.rounds):
            return {}
        busy = {order.client for order in self.exchange.flying.values()}
        orders = self._orders(after, nodes, after.positions({*nodes} - busy), train=False)
        try:
            outcome = self.exchange([order._replace(evaluate=True) for order in orders])
        except Void as why:  # no reason to lose the round
            log.warning("round %d is not evaluated: %s", t, why)
            return {}
        return scores(outcome, dict(zip(roster.ids.tolist(), roster.weights.tolist(), strict=True)))

    def _select(
        self, state: ServerState, roster: Roster, nodes: Mapping[int, int]
    ) -> tuple[Ids, Ids, State, dict[int, str]]:
        """All clients that are online, or those that the strategy chooses among them by their losses.

        Returns the positions of the available clients and of those that train, the strategy's state after
        choosing, and the clients whose losses were rejected.
        """
        now, here = state.checkpoint, state.positions(nodes)
        if hooks_of(self.rules.strategy).select is None:
            asked, unknown = self._drawn(here, now.t + 1), np.zeros(0, np.float32)
            chosen, remembered = self.rules.select(now, asked, unknown, roster.weights)
            return asked, chosen, remembered, {}
        replies = self.exchange(self._orders(state, nodes, here, train=False))
        available = state.positions(replies.accepted)
        losses = np.array([replies.accepted[i].loss for i in state.ids[available].tolist()], np.float32)
        chosen, remembered = self.rules.select(now, available, losses, roster.weights)
        return available, chosen, remembered, replies.rejected

    def _drawn(self, here: Ids, t: int) -> Ids:
        """All clients that are online or, with a target, some more than it, drawn at random.

        The others are not available in this round: p_i is the chance that an update is here, and the draw is a
        part of it, as is being among the first to answer. Otherwise slow clients would count too little.
        """
        most = math.ceil(self.how.ask * self.how.target) if self.how.target else len(here)
        if len(here) <= most:
            return here
        return np.sort(stream(self.settings.file.seed, "ask", t).choice(here, most, replace=False))

    def _present(self, roster: Roster) -> dict[int, int]:
        """Client → node of the members that are online; waits until they are a quorum."""
        logged = False
        while True:
            nodes = self._online(roster)
            if len(nodes) >= self.how.quorum:
                return nodes
            if not logged:
                log.info("waiting for clients: %d online, the quorum is %d", len(nodes), self.how.quorum)
            logged = True
            self.link.sleep(self.how.poll)

    def _online(self, roster: Roster) -> dict[int, int]:
        members = roster.by_key()
        return {members[key]: node for node, key in sorted(self.link.online().items()) if key in members}

    def _orders(self, state: ServerState, nodes: Mapping[int, int], clients: Ids, train: bool) -> list[Order]:
        now, s = state.checkpoint, self.settings
        drift = hooks_of(self.rules.strategy).drift
        added = drift(now.state, clients) if drift and train else [None] * len(clients)
        return [
            Order(
                nodes[i], i, now.t + 1, secrets.token_hex(16), self.ledger.run, s.file.seed, s.local, now.params,
                added[k], train, now.buffers,
            )
            for k, i in enumerate(state.ids[clients].tolist())
        ]  # fmt: skip

    def _shared(self, state: ServerState, roster: Roster, clients: Ids, orders: list[Order]) -> list[Order]:
        """The orders with what clients that keep their own memories are told besides."""
        rule, now = self.rules.strategy, state.checkpoint
        if not isinstance(rule, Summed):
            return orders
        r = opened_round(self.rules, now, clients, roster.weights, idle=clients[:0])
        named, size = json.dumps(describe(rule.strategy, STRATEGIES)), rule.size(len(now.params))
        told = zip(orders, rule.orders(now.state, r), now.state.counted[clients].tolist(), strict=True)
        return [order._replace(share=Share(named, one, t, now.state.epoch, size)) for order, one, t in told]

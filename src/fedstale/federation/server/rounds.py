"""The round loop of a real federation: the same round as in `simulate`, with clients that are really there.

A round ends in one of two ways. It closes: whoever did not answer well was absent or rejected, the strategy
steps, the estimator observes, the state is committed. Or it is void: the infrastructure failed, nothing is
observed and nothing changes, and the same round is tried again. Otherwise an outage of the server would look
like absence of the clients, and every estimate of p_i would be too low.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, Availability, Ids, State, require
from fedstale.experiments.tracer import Tracer
from fedstale.federation.protocol.exchange import Exchange, Void
from fedstale.federation.protocol.link import Link, LinkDown, Order
from fedstale.federation.server.close import Closing, close, rows, sound
from fedstale.federation.settings import Settings
from fedstale.federation.state.ledger import Ledger
from fedstale.federation.state.roster import Roster
from fedstale.federation.state.server_state import Book, Rules
from fedstale.runs.store import read_json

log = logging.getLogger("fedstale.federation")
TRACED = 256  # realised weights cost n × n: with more clients they are left out
PAUSE = 30.0  # seconds, the longest wait after a void round


def was_traced(state: Path, default: bool) -> bool:
    """Whether the state on disk holds realised weights: a federation that grows goes on as it began."""
    manifest = state / "manifest.json"
    return str(read_json(manifest).get("run")).endswith("t") if manifest.exists() else default


class Stalled(Exception):
    """Too many void rounds in a row; what was committed is safe."""


class Closed(NamedTuple):
    """A committed round."""

    book: Book
    line: dict[str, Any]  # as in metrics.jsonl


class Selected(NamedTuple):
    """Who trains, as rows, and what the strategy remembers of the choice."""

    available: Ids
    chosen: Ids
    state: State
    rejected: dict[int, str]


class Server:
    """Plays the rounds that are not committed yet."""

    def __init__(
        self, settings: Settings, link: Link, roster: Callable[[], Roster], start: Callable[[int], Array]
    ) -> None:
        """`roster` is asked before every round, `start(seed)` gives the parameters of round 0."""
        self.settings, self.link, self.roster, self.how = settings, link, roster, settings.file.round
        rules, params = settings.rules, np.array(start(settings.file.seed), np.float32)
        require(params.ndim == 1 and bool(np.isfinite(params).all()), "the start must be a finite flat vector")
        run = f"{settings.run}-{len(params)}"
        if was_traced(settings.state, default=len(roster().members) <= TRACED):
            rules, run = rules._replace(strategy=Tracer(rules.strategy)), run + "t"
        self.rules: Rules = rules
        self.exchange = Exchange(link, self.how)
        self.ledger = Ledger(settings.state, run, lambda n: self.rules.blank(n, params))

    def play(self) -> Iterator[Closed]:
        """The rounds after the last committed one, each committed before it is yielded."""
        with self.ledger.locked():
            book = self.ledger.load() or self._first()
            while book.checkpoint.t < self.settings.file.rounds:
                closed = self._next(book)
                book = closed.book
                yield closed

    def _first(self) -> Book:
        roster = self.roster()
        require(len(roster.members) > 0, "the roster must have a client, got none")
        book = self.ledger.blank(len(roster.members))._replace(ids=roster.ids, roster=roster.version)
        self.ledger.commit(book, {})
        return book

    def _next(self, book: Book) -> Closed:
        """The next round, tried until it closes."""
        for attempt in range(self.how.retries + 1):
            roster = self.roster()
            if roster.version != book.roster:
                log.info("roster %d: clients %s", roster.version, roster.ids.tolist())
                book = self.rules.enrolled(book, roster.ids, roster.version)
            try:
                return self._round(book, roster)
            except Void as why:
                log.warning("round %d is void: %s", book.checkpoint.t + 1, why)
                book = book._replace(voids=book.voids + 1)
                self.link.sleep(min(2.0**attempt, PAUSE))
        raise Stalled(f"round {book.checkpoint.t + 1} was void {self.how.retries + 1} times in a row")

    def _round(self, book: Book, roster: Roster) -> Closed:
        nodes = self._present(roster)
        began = self.link.now()
        s = self._select(book, roster, nodes)
        outcome = sound(book, self.exchange(self._orders(book, nodes, s.chosen, train=True)), self.how.norm_factor)
        good = len(outcome.accepted)
        if good < self.how.quorum:
            raise Void(
                f"{good} good replies, the quorum is {self.how.quorum}; rejected: {outcome.rejected or 'none'}"
            )
        outcome = outcome._replace(rejected=s.rejected | outcome.rejected)
        for client, reason in sorted(outcome.rejected.items()):
            log.warning("round %d: client %d rejected: %s", book.checkpoint.t + 1, client, reason)
        c = Closing(roster.weights, outcome, s.chosen, np.setdiff1d(s.available, s.chosen), self.link.now() - began)
        book = book._replace(checkpoint=book.checkpoint._replace(state=s.state))
        after, line = close(book, self.rules, self.settings.local, c)
        self.ledger.commit(after, line)
        log.info("round %d: heard %s, absent %s", line["round"], line["heard"], line["absent"])
        return Closed(after, line)

    def _select(self, book: Book, roster: Roster, nodes: Mapping[int, int]) -> Selected:
        """All who are there, unless the strategy chooses among them by their losses."""
        now, here = book.checkpoint, rows(book, nodes)
        select = getattr(self.rules.strategy, "select", None)
        if select is None:
            return Selected(here, here, now.state, {})
        told = self.exchange(self._orders(book, nodes, here, train=False))
        available = rows(book, told.accepted)
        losses = np.array([told.accepted[i].loss for i in book.ids[available].tolist()], np.float32)
        mixing = getattr(self.rules.estimator, "mixing", lambda belief: np.zeros(len(book.ids), np.float32))
        probs = self.rules.estimator.probs(now.belief)
        a = Availability(now.t + 1, available, losses, roster.weights, probs, mixing(now.belief))
        chosen, state = select(now.state, a)
        return Selected(available, chosen, state, told.rejected)

    def _present(self, roster: Roster) -> dict[int, int]:
        """Client → node of the members that are online, as soon as these are a quorum."""
        members, told = roster.by_key(), False
        while True:
            try:
                online = self.link.online()
            except LinkDown as error:
                raise Void(f"the link failed: {error}") from error
            nodes = {members[key]: node for node, key in sorted(online.items()) if key in members}
            if len(nodes) >= self.how.quorum:
                return nodes
            if not told:
                log.info("waiting for clients: %d online, the quorum is %d", len(nodes), self.how.quorum)
            told = True
            self.link.sleep(self.how.poll)

    def _orders(self, book: Book, nodes: Mapping[int, int], who: Ids, train: bool) -> list[Order]:
        now, s = book.checkpoint, self.settings
        drift = getattr(self.rules.strategy, "drift", None)
        drifts = drift(now.state, who) if drift and train else [None] * len(who)
        return [
            Order(
                nodes[i], i, now.t + 1, secrets.token_hex(16), self.ledger.run, s.file.seed, s.local, now.params,
                drifts[k], train,
            )
            for k, i in enumerate(book.ids[who].tolist())
        ]  # fmt: skip

"""The timeline of a server: which updates arrive for each step, how old they are, and when.

It is an event queue that never sees a parameter, so that one timeline serves all algorithms of a comparison.
"""

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedstale.core import BadInput, Ids, stream
from fedstale.participation.clock.latency import Latency, Load
from fedstale.participation.clock.pace import Pace, Rule
from fedstale.participation.clock.presence import Change

STUCK = 200_000  # events without an arrival after which a timeline is given up


class Row(NamedTuple):
    """What the server has when it makes a step."""

    clients: Ids  # (m,) whose update arrived, ascending
    ages: Ids  # (m,) steps since the parameters that it was trained on; 0: those of now
    seconds: float  # when, since the beginning
    bytes_up: int  # since the step before
    bytes_down: int
    lost: int  # trainings in vain: the client left, was too late, or sent a newer update before the step
    idle: float  # share of the time that places for clients at work were empty
    versions: Ids  # (k,) ascending: the steps whose parameters somebody is still training on


class Idle:
    """The clients that are there and have nothing to do; one of them is drawn in constant time."""

    def __init__(self, n: int) -> None:
        self.size, self._clients, self._place = 0, _numbers(n, 0), _numbers(n, -1)  # place: -1 if not idle

    def add(self, client: int) -> None:
        self._clients[self.size], self._place[client] = client, self.size
        self.size += 1

    def remove(self, client: int) -> None:
        place, last = self._place[client], self._clients[self.size - 1]
        self._clients[place], self._place[last] = last, place  # the last one takes its place
        self._place[client], self.size = -1, self.size - 1

    def change(self, came: Ids, left: Ids) -> None:
        """Many at once; of those who left, some may not be idle."""
        places, clients = np.frombuffer(self._place, np.int64), np.frombuffer(self._clients, np.int64)
        places[left] = -1
        kept = clients[: self.size][places[clients[: self.size]] >= 0]
        self.size = len(kept) + len(came)
        clients[: self.size] = np.concatenate([kept, came])
        places[clients[: self.size]] = np.arange(self.size)

    def draw(self, k: int, rng: np.random.Generator) -> Ids:
        """k of them, each equally likely, which are idle no more."""
        if k == 1:
            client = self._clients[int(rng.random() * self.size)]
            self.remove(client)
            return np.array([client])
        clients = np.frombuffer(self._clients, np.int64)[: self.size]
        drawn: Ids = clients.copy() if k == self.size else clients[rng.choice(self.size, k, replace=False)]
        if 16 * k < self.size:
            for client in drawn.tolist():
                self.remove(client)
        else:
            self.change(drawn[:0], drawn)
        return drawn


def _numbers(n: int, value: int) -> "array[int]":
    """n numbers: single ones are read and written faster than those of numpy, which sees them all as an array."""
    return array("q", [value]) * n


class _Server:
    """The state of a timeline between two events."""

    def __init__(self, n: int, presence: Iterator[Change], latency: Latency, rule: Rule, load: Load, seed: int):
        self.latency, self.rule, self.load, self.presence = latency, rule, load, presence
        self.choice, self.jitter = stream(seed, "clock", "choice"), stream(seed, "clock", "jitter")
        self.fleet, self.change = latency.fleet(n, stream(seed, "clock", "fleet")), next(presence)
        self.idle, self.now, self.version = Idle(n), 0.0, 0
        self.queue: list[tuple[float, int, int]] = []  # when, number of the training, client
        self.training, self.sent = _numbers(n, -1), _numbers(n, 0)  # by client: number or -1, version that it got
        self.flying, self.trainings = Counter[int](), 0  # version → clients that train on it
        self.in_flight = 0

    def row(self) -> Row:
        """Wait until the next step is due."""
        self.ages: dict[int, int] = {}
        self.asked = self.received = self.lost = 0
        self.busy, self.quiet, opened = 0.0, 0, self.now
        if self.rule.together:
            self._open()
        due = math.inf if self.rule.seconds is None else self.now + self.rule.seconds
        while not self._enough():
            if not self.rule.together:
                self._ask()
            if min(self._next(), self.change.seconds) > due:
                self._pass(due)
                break
            self._event()
        places = (self.asked if self.rule.together else self.rule.most) * (self.now - opened)
        if self.rule.together:
            self._stop([client for _, number, client in self.queue if self.training[client] == number])
        self.version += 1
        clients = np.array(sorted(self.ages), np.int64)
        return Row(
            clients, np.array([self.ages[i] for i in clients.tolist()], np.int64), self.now,
            self.received * self.load.up, self.asked * self.load.down, self.lost,
            max(0.0, 1 - self.busy / places) if places > 0 else 0.0, np.array(sorted(self.flying), np.int64),
        )  # fmt: skip

    def _enough(self) -> bool:
        enough = self.rule.arrivals is not None and self.received >= self.rule.arrivals
        return enough or (self.rule.together and self.in_flight == 0)

    def _open(self) -> None:
        """Wait until somebody is there, and ask all who are wanted."""
        while self.change.seconds <= self.now or self.idle.size == 0:
            self._event()
        self._send(min(self.rule.most, self.idle.size))

    def _ask(self) -> None:
        """Keep as many at work as allowed; not before all that happens at this instant has happened."""
        wanted = min(self.rule.most - self.in_flight, self.idle.size)
        if wanted > 0 and min(self._next(), self.change.seconds) > self.now:
            self._send(wanted)

    def _next(self) -> float:
        """When the next client is done."""
        while self.queue and self.training[self.queue[0][2]] != self.queue[0][1]:  # it was stopped
            heapq.heappop(self.queue)
        return self.queue[0][0] if self.queue else math.inf

    def _pass(self, when: float) -> None:
        self.busy += self.in_flight * (when - self.now)
        self.now = when

    def _event(self) -> None:
        """The next arrival or change of presence; of two at once, the arrival."""
        self.quiet += 1
        if self.quiet > STUCK:
            raise BadInput(
                f"no update has arrived since {self.now:.0f} seconds in {STUCK:,} events: clients must be there, "
                "and stay longer than a training takes"
            )
        when = self._next()
        if when <= self.change.seconds:
            self._pass(when)
            self._arrive(heapq.heappop(self.queue)[2])
        else:
            self._pass(max(self.now, self.change.seconds))
            self._move(self.change)
            self.change = next(self.presence)

    def _send(self, k: int) -> None:
        """Send the parameters of now to k clients."""
        clients = self.idle.draw(k, self.choice)
        ends = self.now + self.latency.seconds(self.fleet, clients, self.load, self.jitter)
        for end, client in zip(ends.tolist(), clients.tolist(), strict=True):
            heapq.heappush(self.queue, (end, self.trainings, client))
            self.training[client], self.sent[client] = self.trainings, self.version
            self.trainings += 1
        self.flying[self.version] += k
        self.in_flight, self.asked = self.in_flight + k, self.asked + k

    def _arrive(self, client: int) -> None:
        self.quiet, self.received = 0, self.received + 1
        self.lost += client in self.ages  # the newest counts
        self.ages[client] = self.version - self.sent[client]
        self._land(client)

    def _move(self, change: Change) -> None:
        """Clients come and go; what those who go were training is lost."""
        if self.in_flight:
            self._stop([client for client in change.left.tolist() if self.training[client] >= 0])
        if len(change.came) or len(change.left):
            self.idle.change(change.came, change.left)

    def _stop(self, clients: list[int]) -> None:
        self.lost += len(clients)
        for client in clients:
            self._land(client)

    def _land(self, client: int) -> None:
        """The client is not training any more."""
        version = self.sent[client]
        self.flying[version] -= 1
        if self.flying[version] == 0:
            del self.flying[version]
        self.training[client] = -1
        self.in_flight -= 1
        self.idle.add(client)


def timeline(
    n: int, presence: Iterator[Change], latency: Latency, pace: Pace, load: Load, seed: int
) -> Iterator[Row]:
    """One row per step, endless: the same for the same seed, and a longer one begins with a shorter one."""
    server = _Server(n, presence, latency, pace.rule(n), load, seed)
    while True:
        yield server.row()

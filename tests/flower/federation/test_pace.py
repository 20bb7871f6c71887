"""A federation with a pace: the server waits for nobody, and late replies are kept with their age."""

import numpy as np
import pytest

import fedstale as fs
from fedstale.core import BadInput, Local
from fedstale.engines import Serial
from fedstale.flower.federation.protocol.link import Arrival, Fault
from fedstale.flower.federation.server.rounds import Server
from fedstale.participation.clock import Row
from tests.flower.federation.inprocess import InProcess, roster_of
from tests.flower.federation.parts import LOCAL, D, N, made

TASK = fs.Quadratic.random(N, D, seed=3)  # without noise: an update depends on what was sent alone
SECONDS = [1.0, 1.1, 1.2, 3.3, 7.0, 11.0]
PACE = {"kind": "buffer", "size": 2, "concurrency": 4}


class Slow(InProcess):
    """Clients that take so many seconds each."""

    def __init__(self, answer=lambda order, body: None, seconds=SECONDS, there=range(N)):
        super().__init__(TASK, there, answer)
        self.seconds, self.ready, self.asked = seconds, {}, []

    def _take(self, order):
        handle = super()._take(order)
        self.ready[handle] = self.clock + self.seconds[order.client]
        self.asked.append(order.client)
        return handle

    def pull(self, messages):
        return super().pull([m for m in messages if self.ready[m] <= self.clock])


def server(folder, link, rounds=30, pace=PACE, **changes):
    chosen = made(folder, rounds=rounds, pace=pace, defence=False, **changes)
    return Server(chosen, link, lambda: roster_of(range(N)), TASK.init)


def rows(closed):
    """What the rounds were, for a clock that plays them again."""
    when = np.cumsum([c.line["seconds"] for c in closed])
    none = np.array([], np.int64)
    lists = [(np.array(c.line["heard"], np.int64), np.array(c.line["ages"], np.int64)) for c in closed]
    return [Row(*pair, float(t), 0, 0, 0, 0.0, none) for pair, t in zip(lists, when, strict=True)]


@pytest.mark.parametrize("strategy", ["auto", "fedbuff", "fedasync", "mifa"])
@pytest.mark.parametrize(
    "pace", [PACE, {"kind": "ticks", "seconds": 2.0, "concurrency": 6}], ids=["buffer", "ticks"]
)
def test_late_replies_are_kept_with_their_age_and_have_the_bits_of_a_simulation(tmp_path, strategy, pace):
    s = server(tmp_path, Slow(), strategy=strategy, pace=pace)
    closed = list(s.play())
    assert max(age for c in closed for age in c.line["ages"]) >= 2
    fs.Clock.save(rows(closed), tmp_path / "timeline.csv")
    *_, end = fs.simulate(
        Serial(TASK, Local(**LOCAL)), s.settings.rules.strategy, fs.Bernoulli(1.0), rounds=30, seed=1,
        estimator=s.settings.rules.estimator, clock=fs.Clock(replay=tmp_path / "timeline.csv"),
    )  # fmt: skip
    np.testing.assert_array_equal(closed[-1].state.checkpoint.params, end.params)


def test_a_server_that_is_killed_goes_on_after_the_last_committed_step(tmp_path):
    link = Slow()
    play = server(tmp_path, link).play()
    first = [next(play) for _ in range(7)]
    play.close()
    again = list(server(tmp_path, Slow(), rounds=12).play())
    assert [c.line["round"] for c in again] == [8, 9, 10, 11, 12]
    assert set(again[0].line["ages"]) == {0}  # what was in flight counts as absent
    assert again[-1].state.counts.heard.sum() == sum(len(c.line["heard"]) for c in [*first, *again])


def test_a_client_that_is_rejected_does_not_count_and_one_that_is_removed_is_forgotten(tmp_path):
    def answer(order, body):
        return [Arrival("", order.node, body._replace(t=-1))] if order.client == 0 else None

    link = Slow(answer)
    s, roster = server(tmp_path, link, rounds=8), [roster_of(range(N))]
    s.roster = lambda: roster[0]
    play = s.play()
    closed = [next(play) for _ in range(5)]
    assert any(c.line["rejected"] == {"0": "wrong round"} for c in closed)
    assert all(0 not in c.line["heard"] and c.line["heard"] for c in closed)
    roster[0] = roster_of(range(5), version=2)
    closed = list(play)
    assert closed[-1].state.ids.tolist() == [*range(5)]
    assert not s.exchange.flying


def test_an_order_that_is_not_answered_before_its_deadline_is_given_up(tmp_path):
    link = Slow(lambda order, body: [] if order.client == 5 else None)
    closed = list(server(tmp_path, link, rounds=12, round={"deadline": 4.0}, pace=PACE | {"concurrency": N}).play())
    assert any(5 in c.line["absent"] for c in closed)
    assert link.asked.count(5) >= 2


def test_a_link_that_fails_voids_the_step_and_nothing_stays_in_flight(tmp_path):
    failed = []

    def answer(order, body):
        if order.t == 3 and not failed:
            failed.append(order.client)
            return [Arrival("", None, None, Fault.infrastructure, "lost")]
        return None

    closed = list(server(tmp_path, Slow(answer), rounds=4).play())
    assert closed[-1].state.voids == 1
    assert set(closed[2].line["ages"]) == {0}


def test_what_cannot_be_without_rounds_is_a_sentence(tmp_path):
    for changes, sentence in (
        ({"defence": True}, "a defence compares updates from the same parameters"),
        ({"strategy": "ca-fed"}, "selects clients by their losses"),
        ({"strategy": "scaffold"}, "changes local gradients"),
        ({"pace": {"kind": "rounds"}}, "a pace is Buffer or Ticks"),
        ({"round": {"target": 3}}, "it must be 0 with a pace, got 3"),
    ):
        with pytest.raises(BadInput, match=sentence):
            made(tmp_path, **{"pace": PACE, "defence": False} | changes)

"""Timelines: rounds against a simulation written out by hand, and what holds for every pace."""

from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstale.core import BadInput, Participation
from fedstale.core.rng import stream
from fedstale.participation import Bernoulli, Events, Trace
from fedstale.participation.clock import Buffer, Clock, Constant, Devices, Load, Lognormal, Pace, Rounds, Row, Ticks
from fedstale.participation.clock.timeline import Idle
from tests.participation.clock.drawn import scores

PACES = (Rounds(), Rounds(ask=4, need=3), Rounds(deadline=6.0), Buffer(3, 5), Buffer(1, 2), Ticks(4.0, 6))


def rows(clock: Clock, who: Participation, n: int, steps: int, seed: int = 1) -> list[Row]:
    return list(islice(clock.rows(who, n, Load(np.full(n, 5), 100, 10), seed), steps))


def same(a: Sequence[Row], b: Sequence[Row]) -> bool:
    return all(np.array_equal(x, y) for r, s in zip(a, b, strict=True) for x, y in zip(r, s, strict=True))


def by_hand(table: Any, length: float, speeds: Any, need: int | None, deadline: float, steps: int) -> list[Any]:
    """Synchronous rounds, one after the other: (who arrives, when it closes, how many trained in vain)."""
    now, found = 0.0, []
    here = lambda t, i: bool(table[int(t // length) % len(table)][i])  # noqa: E731
    for _ in range(steps):
        while not any(here(now, i) for i in range(len(speeds))):
            now = (now // length + 1) * length
        asked = [i for i in range(len(speeds)) if here(now, i)]
        ends = {}  # when each arrives, or leaves
        for i in asked:
            end, edge = now + 5 / speeds[i], (now // length + 1) * length
            while edge < end and here(edge, i):
                edge += length
            ends[i] = (min(end, edge), end <= edge)
        came = sorted((end, i) for i, (end, ok) in ends.items() if ok)
        close = max(end for end, _ in ends.values()) if need is None or len(came) < need else came[need - 1][0]
        close = min(close, now + deadline)
        heard = sorted(i for end, i in came[:need] if end <= close)
        found.append((heard, close, len(asked) - len(heard)))
        now = close
    return found


@pytest.mark.parametrize(("need", "deadline"), [(None, None), (3, None), (None, 7.0), (2, 9.0)])
def test_rounds_are_those_of_a_simulation_by_hand(need: int | None, deadline: float | None) -> None:
    rng = np.random.default_rng(3)
    table, speeds = rng.random((40, 8)) < 0.6, rng.uniform(0.3, 2, 8)
    clock = Clock(Rounds(None, need, deadline), Devices(speeds, jitter=0.0, in_order=True), round_seconds=5.5)
    got = rows(clock, Trace(table), 8, 60)
    due = by_hand(table, 5.5, speeds, need, deadline or np.inf, 60)
    assert [r.clients.tolist() for r in got] == [heard for heard, _, _ in due]
    assert [r.seconds for r in got] == pytest.approx([close for _, close, _ in due])
    assert [r.lost for r in got] == [lost for _, _, lost in due]
    assert all(r.bytes_down == 100 * (len(r.clients) + r.lost) for r in got)


def test_rounds_as_long_as_a_row_are_the_rows_of_the_participation() -> None:
    who = Bernoulli(0.5)
    got = rows(Clock(Rounds(), Constant(2.0), round_seconds=2.0), who, 20, 50)
    from fedstale.core.rng import stream

    due = who.rows(20, stream(1, "participation"))
    for t, (r, row) in enumerate(zip(got, due, strict=False), 1):
        assert np.array_equal(r.clients, np.flatnonzero(row))
        assert (r.seconds, r.lost, r.idle, len(r.versions)) == (2.0 * t, 0, 0.0, 0)
        assert not r.ages.any()


@given(st.sampled_from(PACES), st.integers(0, 10**6), st.floats(0.2, 1.0), st.floats(1.0, 40.0))
@settings(max_examples=40, deadline=None)
def test_what_holds_for_every_pace(pace: Pace, seed: int, p: float, length: float) -> None:
    clock = Clock(pace, Lognormal(step_seconds=0.4), round_seconds=length)
    got, again = (rows(clock, Bernoulli(p), 12, steps, seed) for steps in (30, 20))
    assert same(got[:20], again)  # a longer timeline begins with a shorter one
    assert all(a.seconds <= b.seconds for a, b in pairwise(got))
    rule = pace.rule(12)
    for t, r in enumerate(got):
        assert (np.diff(r.clients) > 0).all()
        assert (r.ages >= 0).all()
        assert (r.ages <= t).all()
        assert 0 <= r.idle <= 1
        assert len(r.versions) <= rule.most
        assert (r.versions <= t).all()
        assert not (rule.together and r.ages.any())
        if rule.arrivals is not None and not rule.together:
            assert r.bytes_up == 10 * rule.arrivals
    for t, r in enumerate(got[1:], 1):  # what is trained on was kept in every step between
        for version in (t - r.ages[r.ages > 0]).tolist():
            assert all(version in before.versions for before in got[version:t])


def test_work_is_lost_with_the_client_and_an_update_replaced_by_a_newer_one() -> None:
    away = rows(
        Clock(Rounds(), Devices([1.0, 0.2], jitter=0.0), round_seconds=6.0), Trace([[1, 1], [1, 0]]), 2, 4, 5
    )
    assert sum(r.lost for r in away) > 0
    twice = rows(Clock(Buffer(4, 2), Devices([1.0, 0.2], 1.0, 0.0, in_order=True), round_seconds=9.0),
                 Bernoulli(1.0), 2, 5)  # fmt: skip
    assert [r.lost for r in twice] == [3 if len(r.clients) == 1 else 2 for r in twice]


def test_events_are_read_in_seconds_and_play_again() -> None:
    on, off = "AVL_TRAIN", "UN_AVL"
    events = [("a", "", 10, on), ("b", "", 15, on), ("a", "", 21, off), ("b", "", 40, off), ("c", "", 50, off)]
    who = Events(events, round_seconds=5.0, clients=2)
    got = rows(Clock(Rounds(), Constant(8.0)), who, 2, 4)
    assert [(r.clients.tolist(), r.seconds, r.lost) for r in got] == [
        ([0], 18.0, 0),  # a is there from 10, b only from 15
        ([1], 26.0, 1),  # both are asked; a leaves at 21
        ([1], 34.0, 0),
        ([], 40.0, 1),
    ]
    assert rows(Clock(Rounds(), Constant(8.0)), who, 2, 5)[-1].seconds == 68.0  # 50 s later, from 60


def test_a_timeline_is_replayed_from_its_file(tmp_path: Path) -> None:
    clock = Clock(Buffer(3, 5), Lognormal(), round_seconds=30.0)
    drawn = rows(clock, Bernoulli(0.7), 12, 40)
    Clock.save(drawn, tmp_path / "timeline.csv")
    replay = Clock(replay=tmp_path / "timeline.csv")
    got = rows(replay, Bernoulli(0.1), 12, 40)
    assert same([r[:7] for r in got], [r[:7] for r in drawn])  # type: ignore[arg-type]
    for a, b in zip(got, drawn, strict=True):
        assert {*a.versions.tolist()} <= {*b.versions.tolist()}
    assert replay == Clock(replay=np.asarray(replay.replay))
    assert not replay.waits(12)
    with pytest.raises(BadInput, match="has 40 steps"):
        rows(replay, Bernoulli(0.1), 12, 41)
    with pytest.raises(BadInput, match="has a client 11; there are 5"):
        rows(replay, Bernoulli(0.1), 5, 1)


def test_messages_take_time_both_ways() -> None:
    rng, load = stream(1, "latency"), Load(np.full(3, 5), 100, 10)
    for latency in (
        Lognormal(2.0, spread=0, jitter=0, bandwidth=10.0),
        Devices([1.0], 2.0, jitter=0, bandwidth=10.0),
    ):
        fleet = latency.fleet(3, rng)
        assert latency.seconds(fleet, np.arange(3), load, rng).tolist() == [5 * 2 + 110 / 10] * 3


def test_idle_clients_are_each_there_once() -> None:
    rng, idle, there = stream(1, "idle"), Idle(40), set[int]()
    for step in range(300):
        if step % 20 == 0:
            gone = {c for c in there if rng.random() < 0.3}
            came = [c for c in range(40) if c not in there and rng.random() < 0.5]
            idle.change(np.array(came, np.int64), np.array(sorted(gone), np.int64))
            there = (there - gone) | {*came}
        elif there:
            drawn = idle.draw(min(2 if step % 10 == 5 else 1, len(there)), rng).tolist()
            assert {*drawn} <= there
            there -= {*drawn}
        if step % 3 == 0 and (away := sorted({*range(40)} - there)):
            idle.add(away[0])
            there.add(away[0])
        assert sorted(idle._clients[: idle.size]) == sorted(there)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BadInput, match="need must be at most ask, 3, got 4"):
        Rounds(ask=3, need=4)
    with pytest.raises(BadInput, match="Bernoulli knows no seconds: the clock needs round_seconds"):
        rows(Clock(), Bernoulli(0.5), 3, 1)
    for table in ([1.0, 0.0], [True]):
        with pytest.raises(BadInput, match="must be speeds above 0"):
            Devices(table)
    for latency, more in (
        ({"spread": 1e4}, r"spread must be in \[0, 10\]"),
        ({"jitter": 11}, "jitter must be in"),
    ):
        with pytest.raises(BadInput, match=more):
            Lognormal(**latency)
    with pytest.raises(BadInput, match="in_order and fastest_first cannot both be true"):
        Devices([1.0, 2.0], in_order=True, fastest_first=True)
    with pytest.raises(BadInput, match="seconds must be above 0 and finite, got inf"):
        Ticks(np.inf)
    with pytest.raises(BadInput, match=r"pace\.need must be at most the 3 clients, got 4"):
        rows(Clock(Rounds(need=4), Constant()), Bernoulli(1.0), 3, 1)
    step = [1, 5.0, 0, 0, 0, 0.0]
    for arrivals in ([[2.5, 0]], [[2, 0], [2, 0]]):
        with pytest.raises(BadInput, match="must be whole numbers, and a client can be in a step once"):
            Clock(replay=[[*step, -1, -1], *([*step, *pair] for pair in arrivals)])
    with pytest.raises(BadInput, match="leave out pace, latency and round_seconds"):
        Clock(Buffer(), replay=[[*step, -1, -1]])
    with pytest.raises(BadInput, match="no update has arrived"):
        rows(Clock(Buffer(1, 1), Constant(9.0), round_seconds=1.0), Trace([[1, 0], [0, 1]]), 2, 1)


def test_the_second_step_is_unbiased_over_drawn_timelines() -> None:
    assert (np.abs(scores(500)) < 4).all()  # `python -m tests.participation.clock.drawn` draws 10,000

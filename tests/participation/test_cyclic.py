"""Groups that take turns, against schedules written by hand."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from fedstale.core import BadInput, Mask, Participation
from fedstale.core.rng import stream
from fedstale.participation.cyclic import Cyclic
from fedstale.testing import check_participation


def first_rows(participation: Participation, rounds: int, n: int, seed: int = 0) -> Mask:
    return np.array(list(islice(participation.rows(n, stream(seed, "participation")), rounds)))


def drawn(rows: Mask) -> list[str]:
    return ["".join("x" if there else "." for there in client) for client in rows.T]


def test_two_groups_of_two_by_hand() -> None:
    part = Cyclic(groups=2, on=2, off=2)
    assert drawn(first_rows(part, 9, n=4)) == ["xx..xx..x", "xx..xx..x", "..xx..xx.", "..xx..xx."]
    np.testing.assert_array_equal(part.probs(4), [0.5] * 4)


def test_an_offset_skips_rounds() -> None:
    late = Cyclic(groups=3, on=1, off=2, offset=4)
    assert drawn(first_rows(late, 6, n=3)) == ["..x..x", "x..x..", ".x..x."]


def test_groups_may_overlap_or_leave_gaps() -> None:
    assert drawn(first_rows(Cyclic(groups=2, on=3, off=1), 8, n=2)) == ["xxx.xxx.", "x.xxx.xx"]
    assert drawn(first_rows(Cyclic(groups=2, on=1, off=3), 8, n=2)) == ["x...x...", "..x...x."]
    assert drawn(first_rows(Cyclic(groups=2, on=1, off=0), 3, n=2)) == ["xxx", "xxx"]


def test_members_say_who_belongs_to_which_group() -> None:
    part = Cyclic(groups=2, on=1, off=1, members=[1, 0, 1])
    assert drawn(first_rows(part, 4, n=3)) == [".x.x", "x.x.", ".x.x"]


def test_the_papers_setting() -> None:
    """250 clients: 50 at a time for 100 rounds, in turn."""
    rows = first_rows(Cyclic(), 1000, n=250)
    for t in (0, 99, 100, 250, 499, 500, 999):
        turn = t % 500 // 100
        np.testing.assert_array_equal(np.flatnonzero(rows[t]), np.arange(50 * turn, 50 * turn + 50))
    np.testing.assert_array_equal(Cyclic().probs(250), np.full(250, 0.2, np.float32))


def test_a_random_offset_is_any_place_in_the_cycle_and_one_for_a_run() -> None:
    part, plain = (
        Cyclic(groups=2, on=1, off=3, random_offset=True),
        first_rows(Cyclic(groups=2, on=1, off=3), 20, n=2),
    )
    places = Counter()
    for seed in range(400):
        rows = first_rows(part, 8, n=2, seed=seed)
        places[next(k for k in range(4) if (plain[k : k + 8] == rows).all())] += 1
    assert all(abs(places[k] - 100) < 5 * np.sqrt(400 * 0.25 * 0.75) for k in range(4))
    np.testing.assert_array_equal(first_rows(part, 5, n=2), first_rows(part, 20, n=2)[:5])


def test_nothing_else_is_drawn() -> None:
    np.testing.assert_array_equal(first_rows(Cyclic(), 300, n=10, seed=1), first_rows(Cyclic(), 300, n=10, seed=2))


@pytest.mark.parametrize("part", [Cyclic(2, 3, 4), Cyclic(3, 5, 2, offset=3), Cyclic(4, 1, 9, random_offset=True)])
def test_the_battery(part: Participation) -> None:
    check_participation(part)


@pytest.mark.parametrize("part", [Cyclic(2, 3, 4), Cyclic(3, 5, 2), Cyclic(4, 1, 0), Cyclic()])
def test_the_kinds_of_round_are_those_of_a_cycle(part: Cyclic) -> None:
    n, period = 6, part.on + part.off
    listed = Counter()
    for kind in part.kinds(n):
        listed[tuple(kind.p[kind.group] == 1)] += round(kind.share * period)
    assert listed == Counter(tuple(row) for row in first_rows(part, period, n).tolist())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"groups": 0}, "groups must be from 1 to 10000000, got 0"),
        ({"on": 0}, "on must be at least 1, got 0"),
        ({"off": -1}, "off must be at least 0, got -1"),
        ({"offset": -1}, "offset must be at least 0, got -1"),
        ({"members": [0, 5]}, r"members must be one group number in 0 … 4 per client, got \[0, 5\]"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Cyclic(**settings)  # type: ignore[arg-type]

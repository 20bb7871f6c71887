"""Recorded availability, against tiny files written by hand and, where they are, the real ones."""

import gzip
import json
import lzma
import os
import pickle
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from fedstale.core import BadInput, Mask, Participation
from fedstale.core.rng import stream
from fedstale.participation.events import Events, Grid
from fedstale.testing import check_participation

CSV = """device,variant,t_s,state
a,two,0,AVL_TRAIN
a,two,10,UN_AVL
b,two,0,AVL_TRAIN
a,two,25,AVL_TRAIN
b,two,5,UN_AVL
b,two,20,AVL_TRAIN
c,two,0,UN_AVL
c,two,39.5,UN_AVL
a,three,0,AVL_EVAL
a,three,10,AVL_TRAIN
a,three,15,UN_AVL
"""
# rounds of 10 seconds start at 0, 10, 20 and 30
TABLE = np.array([[1, 0, 0, 1], [1, 0, 1, 1], [0, 0, 0, 0]], bool).T


def first_rows(participation: Participation, rounds: int, n: int) -> Mask:
    return np.array(list(islice(participation.rows(n, stream(0, "participation")), rounds)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "events.csv"
    path.write_text(CSV)
    return path


def test_by_hand(file: Path) -> None:
    part = Events(str(file), variant="two", round_seconds=10)
    np.testing.assert_array_equal(first_rows(part, 4, n=3), TABLE)
    np.testing.assert_array_equal(part.probs(3), [0.5, 0.75, 0])
    np.testing.assert_array_equal(first_rows(part, 10, n=3), np.tile(TABLE, (3, 1))[:10])  # starts again
    check_participation(part, n=3)


def test_events_before_the_start_are_dropped(file: Path) -> None:
    part = Events(file, variant="two", round_seconds=10, start=5)  # rounds at 5, 15, 25, 35
    np.testing.assert_array_equal(first_rows(part, 4, n=3).T, np.array([[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]]))


def test_what_counts_as_on_is_a_setting(file: Path) -> None:
    def rows(*on: str) -> list[bool]:
        return first_rows(Events(file, "three", round_seconds=5, on=on), 3, n=1)[:, 0].tolist()

    assert rows("AVL_TRAIN") == [False, False, True]
    assert rows("AVL_TRAIN", "AVL_EVAL") == [True, True, True]


def test_of_two_events_at_once_the_later_holds() -> None:
    records = [("a", "", 0, "UN_AVL"), ("a", "", 0, "AVL_TRAIN"), ("b", "", 5, "UN_AVL"), ("a", "", 9, "UN_AVL")]
    assert first_rows(Events(records, round_seconds=10), 1, n=2).tolist() == [[True, False]]
    flickering = [("a", "", k % 3, state) for k in range(99) for state in ("AVL_TRAIN", "UN_AVL")]
    assert first_rows(Events([*flickering, ("a", "", 1, "AVL_TRAIN")], round_seconds=1), 2, n=1).tolist() == [
        [False],
        [True],
    ]


def test_a_row_is_the_callers(file: Path) -> None:
    """To write in a row changes no later one."""
    rows = Events(file, variant="two", round_seconds=10).rows(3, stream(0))
    for _ in range(4):
        next(rows)[:] = True
    np.testing.assert_array_equal(list(islice(rows, 4)), TABLE)


def test_clients_are_the_first_that_are_ever_available(file: Path) -> None:
    np.testing.assert_array_equal(
        first_rows(Events(file, "two", round_seconds=10, clients=2), 4, n=2), TABLE[:, :2]
    )
    records = [
        ("a", "", 0, "UN_AVL"),
        ("b", "", 0, "AVL_TRAIN"),
        ("c", "", 9, "AVL_TRAIN"),
        ("d", "", 0, "AVL_TRAIN"),
    ]
    part = Events(records, round_seconds=3, clients=2)  # a is never there, c only after the last round started
    assert first_rows(part, 3, n=2).all()
    with pytest.raises(BadInput, match=r"clients must be in 1 … 2, the devices that are ever available, got 3"):
        Events(records, round_seconds=3, clients=3)
    with pytest.raises(BadInput, match="5 clients need 5 recorded devices, got 4"):
        Events(records, round_seconds=3).probs(5)
    with pytest.raises(BadInput, match="3 clients but 4 recorded devices: set clients = 3"):
        Events(records, round_seconds=3).rows(3, stream(0))


def test_all_formats_say_the_same(file: Path, tmp_path: Path) -> None:
    wanted = Events(file, "two", round_seconds=10)
    rows = [line.split(",") for line in CSV.split()[1:]]
    dicts = [dict(zip(("device", "variant", "t_s", "state"), row, strict=True)) for row in rows]
    (tmp_path / "events.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    (tmp_path / "events.csv.xz").write_bytes(lzma.compress(CSV.encode()))
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "dicts.json.gz").write_bytes(gzip.compress(json.dumps(dicts).encode()))
    for name in ("events.csv.gz", "events.csv.xz", "rows.json", "dicts.json.gz"):
        assert Events(str(tmp_path / name), "two", round_seconds=10) == wanted
    assert Events(rows, "two", round_seconds=10) == wanted
    assert pickle.loads(pickle.dumps(wanted)) == wanted


def test_fedscale_lists_and_files_without_variants(tmp_path: Path) -> None:
    (tmp_path / "fedscale.json").write_text(
        json.dumps({"a": {"active": [0, 25], "inactive": [10]}, "b": {"active": [0, 20], "inactive": [5, 39.5]}})
    )
    part = Events(tmp_path / "fedscale.json", round_seconds=10)
    np.testing.assert_array_equal(first_rows(part, 4, n=2), TABLE[:, :2])
    (tmp_path / "plain.csv").write_text("t_s,state,device\n0,AVL_TRAIN,a\n30,UN_AVL,a\n")
    assert first_rows(Events(tmp_path / "plain.csv", round_seconds=10), 3, n=1).all()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.pkl", b"", r"must end in .csv or .json, or .gz or .xz of it, got .*x.pkl"),
        ("x.csv", b"", r"needs the columns device, t_s, state, got \[\]"),
        ("x.csv", b"device,t_s\na,0\n", r"needs the columns device, t_s, state, got \['device', 't_s'\]"),
        ("x.csv", b"device,t_s,state\n", "must hold at least one event, got none"),
        (
            "x.csv",
            b"device,t_s,state\na,0,AVL_TRAIN\na,soon,UN_AVL\n",
            r"event 2 must be .* got \['a', None, 'soon'",
        ),
        ("x.csv", b"device,t_s,state\na,inf,AVL_TRAIN\n", "event 1 must be"),
        ("x.csv", b"device,t_s,state\na,0\n", "event 1 must be"),
        (
            "x.csv",
            b"device,t_s,state\na,0,ON\na,9,OFF\n",
            r"on must name a state of the events, \['OFF', 'ON'\], got",
        ),
        ("x.csv", b"device,t_s,state\na,0,AVL_TRAIN\n", "start must be before the last event, at 0 seconds, got 0"),
        ("x.csv", b"\xff\xfe\x00", "cannot be read"),
        ("x.csv.xz", b"not xz", "cannot be read"),
        ("x.csv.gz", b"not gz", "cannot be read"),
        ("x.csv.gz", gzip.compress(CSV.encode(), mtime=0)[:-20], "cannot be read"),
        ("x.json", b"[", "cannot be read"),
        ("x.json", b"3", "must be a list of records with device, variant, t_s, state, got 3"),
        ("x.json", b'{"a": 3}', r"must be a list of records with .* got \('a', 3\)"),
        ("x.json", b'[["a", 0]]', "must be a list of records"),
        ("x.json", b'[["a", null, [], "AVL_TRAIN"]]', "event 1 must be"),
    ],
)
def test_bad_files_are_refused_with_a_sentence(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=sentence):
        Events(tmp_path / name)


def test_bad_settings_are_refused(file: Path) -> None:
    for settings, sentence in (
        ({}, r"has several variants, variant must be one of \['three', 'two'\], got none"),
        ({"variant": "four"}, r"variant must be one of \['three', 'two'\], got 'four'"),
        ({"variant": "two", "round_seconds": 0}, "round_seconds must be above 0, got 0"),
        ({"variant": "two", "start": -1}, "start must be at least 0, got -1"),
        ({"variant": "two", "start": 40}, "start must be before the last event, at 39.5 seconds, got 40"),
    ):
        with pytest.raises(BadInput, match=sentence):
            Events(file, **settings)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"cannot be read: .*No such file"):
        Events("nowhere.csv")
    with pytest.raises(BadInput, match="events: event 1 must be"):
        Events([("a", 0, "AVL_TRAIN")])


GRID = np.array([[1, 0, -1], [-1, 0, 1], [1, 0, -1], [0, 0, 0]], np.int8)


def test_a_grid_by_hand(tmp_path: Path) -> None:
    np.savez(tmp_path / "grid.npz", avail=GRID, other=GRID[:2])
    part, generous = Grid(tmp_path / "grid.npz"), Grid(str(tmp_path / "grid.npz"), unknown=True)
    np.testing.assert_array_equal(first_rows(part, 6, n=3), (GRID == 1)[[0, 1, 2, 3, 0, 1]])
    np.testing.assert_array_equal(first_rows(generous, 4, n=3), GRID != 0)
    np.testing.assert_array_equal(part.probs(3), [0.5, 0, 0.25])
    np.testing.assert_array_equal(Grid(GRID, clients=2).probs(2), [0.5, 0.25])
    assert len(Grid(tmp_path / "grid.npz", key="other").grid) == 2
    assert part == Grid(GRID)
    check_participation(part, n=3)


def test_bad_grids_are_refused_with_a_sentence(tmp_path: Path) -> None:
    np.savez(tmp_path / "grid.npz", avail=GRID)
    np.savez(tmp_path / "objects.npz", avail=np.array([[print]], object))
    np.save(tmp_path / "single.npy", GRID)
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "grid.npz").read_bytes()[:100])
    for grid, sentence in (
        (tmp_path / "objects.npz", r"the .npz file .* cannot be read"),
        (tmp_path / "text.npz", r"the .npz file .* cannot be read"),
        (tmp_path / "torn.npz", r"the .npz file .* cannot be read"),
        (tmp_path / "none.npz", r"the .npz file .* cannot be read"),
        (tmp_path / "single.npy", "must be an .npz file, got a single array"),
        ([[2]], r"grid must be \(rounds, devices\) of -1, 0 and 1, got int64 of shape \(1, 1\)"),
        ([1, 0], "grid must be"),
        ([[0, 1], [1]], "grid must be"),
    ):
        with pytest.raises(BadInput, match=sentence):
            Grid(grid)
    with pytest.raises(BadInput, match=r"has no array 'av', only \['avail'\]"):
        Grid(tmp_path / "grid.npz", key="av")
    with pytest.raises(BadInput, match=r"clients must be in 1 … 2"):
        Grid(GRID, clients=3)
    with pytest.raises(BadInput, match="2 clients but 3 recorded devices: set clients = 2"):
        Grid(GRID).probs(2)


real = pytest.mark.skipif(
    "FEDSTALE_DATA" not in os.environ, reason="FEDSTALE_DATA names no folder with real traces"
)


def traces() -> Path:
    folder = Path(os.environ["FEDSTALE_DATA"]) / "traces"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder


@real
def test_300_real_phones() -> None:
    part = Events(traces() / "flash300_events.csv.xz", "2_state", start=300)
    p = part.probs(300)
    assert p.mean() == pytest.approx(0.16, abs=0.005)
    np.testing.assert_allclose(np.percentile(p, [25, 50, 75]), [0.07, 0.13, 0.21], atol=0.006)
    assert len(first_rows(part, 2000, n=300)) == 2000


@real
def test_723_real_phones() -> None:
    file = traces() / "flash723_30min.npz"
    part = Grid(file)
    grid = np.load(file)["avail"]
    assert (part.probs(723).sum() / 723) / (grid != -1).mean() == pytest.approx(0.08, abs=0.005)
    assert (Grid(file, clients=500).probs(500) > 0).all()

"""`fedstale inspect`: files of every kind, numbers that can be worked out by hand, and pictures that are there."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from fedstale.cli.inspect import inspect
from fedstale.core import BadInput
from fedstale.lab.advise.evidence import read_numbers, read_trace
from fedstale.view.plots.recording import _at_least

app = typer.Typer()
app.command()(inspect)

# rounds × clients: 0 always, 1 in turns of two, 2 once, 3 never
TABLE = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0]])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "who.csv"
    np.savetxt(path, TABLE, fmt="%d", delimiter=",")
    return path


def inspected(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*map(str, words), "--format", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_the_numbers_of_a_table_worked_out_by_hand(table: Path, tmp_path: Path) -> None:
    found = inspected(table, "--out", tmp_path)
    assert (found["rounds"], found["clients"], found["never"]) == (6, 4, 1)
    assert found["share"] == pytest.approx({"min": 0, "median": 5 / 12, "mean": 11 / 24, "max": 1})
    assert found["spread_of_those_who_come"]["p_min"] == pytest.approx(1 / 6)
    assert found["spread_of_those_who_come"]["p_var"] == pytest.approx(3 / (0 + 1 / 2 + 5))
    assert found["least_rounds"] is None  # infinite: JSON has no such number
    assert found["least_rounds_of_those_who_come"] == pytest.approx(6)
    assert found["presence"]["max"] == 6
    assert found["presence"]["mean"] == pytest.approx((6 + 2 + 2 + 1) / 4)
    assert found["absence"]["mean"] == pytest.approx((2 + 3 + 2 + 6) / 4)
    # client 0: ½ ½ 1 ½ ½ ½, client 1: ½ ½ 0 0 ½ ½, client 2: 0 0 0 ½ 0 0
    b = np.array([3.5, 2, 0.5, 0]) / 6
    assert found["plain_averaging_bias"] == pytest.approx(0.5 * np.abs(b - 0.25).sum())
    assert found["period"] == 3  # 1 / p_min is 6, which is more than half of the rounds
    assert set(found["delta2"]) == {"1", "3", "6"}
    assert found["delta2"]["6"] == pytest.approx(16 * b.var())
    assert [row["client"] for row in found["watch"]] == [2, 1, 0]
    assert [row["longest_absence"] for row in found["watch"]] == [3, 2, 0]


def test_the_picture_and_the_table_of_clients_are_written(table: Path, tmp_path: Path) -> None:
    found = inspected(table, "--out", tmp_path / "new" / "folder")
    assert Path(found["picture"]).read_bytes().startswith(b"\x89PNG")
    with Path(found["numbers"]).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == ["0", "1", "2", "3"]
    assert float(rows[3]["share"]) == 0
    assert sum(float(row["plain_weight"]) for row in rows) == pytest.approx(1)


def test_people_read_the_same(table: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [str(table), "--out", str(tmp_path)], catch_exceptions=False)
    assert "who.csv: 4 clients, 6 rounds" in done.stdout
    assert "1 client; without them p_var 0.545" in done.stdout
    assert "41.7 % of the weight is at the wrong clients" in done.stdout


def test_weights_and_sides(table: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "turned.npy", TABLE.T)
    (tmp_path / "sizes.txt").write_text("2, 1\n1 0\n")
    straight = inspected(table, "--out", tmp_path, "--weights", "2,1,1,0")
    turned = inspected(
        tmp_path / "turned.npy", "--clients-first", "--weights", tmp_path / "sizes.txt", "--out", tmp_path
    )
    assert {**straight, "file": 0, "picture": 0, "numbers": 0} == {**turned, "file": 0, "picture": 0, "numbers": 0}
    b = np.array([4 * 2 / 3 + 1 + 2 / 3, 4 / 3, 1 / 3, 0]) / 6  # client 0 counts twice as much as another
    assert straight["plain_averaging_bias"] == pytest.approx(0.5 * np.abs(b - [0.5, 0.25, 0.25, 0]).sum())


def test_an_event_list_and_a_grid_are_told_from_a_table(tmp_path: Path) -> None:
    events = tmp_path / "events.csv"
    events.write_text("device,t_s,state\na,0,AVL_TRAIN\na,1200,UN_AVL\nb,600,AVL_TRAIN\nb,1800,UN_AVL\n")
    assert read_trace(events, [])[0].tolist() == [[True, False], [True, True], [False, True]]
    assert read_trace(events, ["round_seconds=1200", "clients=1"])[0].tolist() == [[True], [False]]
    with pytest.raises(BadInput, match=r"--clients-first is for a table of zeros and ones, got .* of kind events"):
        read_trace(events, [], clients_first=True)
    visits = tmp_path / "visits.csv"
    visits.write_text("client,date\na,2026-01-01\nb,2026-01-02\n")
    with pytest.raises(BadInput, match=r"--clients-first is for a table of zeros and ones, got .* of kind log"):
        read_trace(visits, [], clients_first=True)
    grid = tmp_path / "grid.npz"
    np.savez(grid, avail=np.array([[-1, 1], [0, 1]], np.int8))
    assert read_trace(grid, [])[0].tolist() == [[False, True], [False, True]]
    assert read_trace(grid, ["unknown=true"])[0].tolist() == [[True, True], [False, True]]
    plain = tmp_path / "plain.npz"
    np.savez(plain, who=np.eye(2))
    assert read_trace(plain, [])[0].tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("name", "content", "changes", "sentence"),
    [
        ("gone.csv", None, [], "there is no trace file"),
        ("two.csv", b"0,1\n0,2\n", [], "must be 0 or 1, got '2'"),
        ("noise.npz", b"\x00\x01", [], "cannot be read"),
        ("cut.csv.xz", b"\xfd7zXZ\x00", [], "cannot be read"),
        ("text.txt", b"0 1", [], "must end in"),
        ("who.csv", b"0,1\n", ["variant=x"], "trace setting 'variant' is unknown"),
        ("events.csv", b"device,variant,t_s,state\na,x,0,AVL_TRAIN\na,y,9,UN_AVL\n", [], "has several variants"),
        ("who.csv", b"0,1\n", ["variant"], "key=value"),
    ],
)
def test_a_wrong_file_is_refused_with_a_sentence(
    tmp_path: Path, name: str, content: bytes | None, changes: list[str], sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=sentence):
        read_trace(tmp_path / name, changes)


@pytest.mark.parametrize("text", ["1,two", "gone.npy", ""])
def test_wrong_weights_are_refused(table: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput, match="weights must be"):
        inspect(table, weights=text, out=tmp_path)


def test_a_table_in_which_nobody_comes_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "empty.npy", np.zeros((3, 2)))
    with pytest.raises(BadInput, match="somebody there"):
        inspect(tmp_path / "empty.npy", out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["empty.npy"]


@pytest.mark.parametrize("table", [np.ones((1, 1)), np.ones((3, 2)), np.eye(70)[:, :65]])
def test_plain_and_large_tables_have_a_picture(tmp_path: Path, table: np.ndarray) -> None:
    np.save(tmp_path / "who.npy", table)
    assert inspected(tmp_path / "who.npy", "--out", tmp_path)["clients"] == table.shape[1]
    assert (tmp_path / "who-trace.png").exists()


def test_weights_are_read_from_words_and_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", [1, 2])
    assert (
        read_numbers(str(tmp_path / "a.npy"), "weights").tolist()
        == read_numbers("1, 2", "weights").tolist()
        == [1, 2]
    )


def test_the_share_of_k_or_more() -> None:
    k, share = _at_least(np.array([5, 1, 0, 2]), 1)  # 0 came 5 times, 1 once, 3 twice
    assert k.tolist() == [1, 2, 3, 4]
    assert share.tolist() == [3 / 8, 2 / 8, 2 / 8, 0]

"""Reading metrics that grow: the same lines as a whole reading, fewer of a long run, and never a traceback."""

import json
from pathlib import Path

import pytest

from fedstale.lab.runs import status
from fedstale.lab.runs.status import Tail
from fedstale.lab.runs.store import RunFolder


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "MOST", 256)


def line(t: int, every: int = 10) -> bytes:
    scores = {"objective": 1 / t, "accuracy": t / 1000} if t % every == 0 else {}
    return json.dumps({"round": t, "participants": 3, **scores}).encode() + b"\n"


def test_a_growing_file_gives_the_lines_that_the_store_reads(tmp_path: Path) -> None:
    found, path = Tail(RunFolder(tmp_path)), tmp_path / "metrics.jsonl"
    assert found.update() == []  # there is no file yet
    path.write_bytes(b"".join(map(line, range(1, 30))) + line(30)[:7])
    assert found.update() == RunFolder(tmp_path).metrics()
    path.write_bytes(b"".join(map(line, range(1, 61))))
    assert [x["round"] for x in found.update()] == list(range(1, 61))
    assert found.lines == RunFolder(tmp_path).metrics()


def test_a_run_that_begins_anew_is_read_anew(tmp_path: Path) -> None:
    found, path = Tail(RunFolder(tmp_path)), tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(map(line, range(1, 30))))
    found.update()
    path.write_bytes(line(1))
    assert found.update() == [json.loads(line(1))]
    path.unlink()
    assert found.update() == []


@pytest.mark.usefixtures("few")
def test_of_a_long_run_few_lines_are_kept_and_all_evaluated_ones(tmp_path: Path) -> None:
    rounds, found = 20 * status.MOST, Tail(RunFolder(tmp_path))
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(line(t, 50) for t in range(1, rounds + 1)))
    lines = found.update()
    assert len(lines) <= status.MOST + rounds // 50
    assert [x["round"] for x in lines if "objective" in x] == list(range(50, rounds + 1, 50))
    assert lines[0]["round"] == 1
    assert [x["round"] for x in lines] == sorted({x["round"] for x in lines})


@pytest.mark.usefixtures("few")
def test_where_every_round_is_evaluated_they_are_thinned_as_well(tmp_path: Path) -> None:
    found, path = Tail(RunFolder(tmp_path)), tmp_path / "metrics.jsonl"
    for end in (status.MOST, 3 * status.MOST, 8 * status.MOST):  # also if it grows while somebody looks
        path.write_bytes(b"".join(line(t, 1) for t in range(1, end + 1)))
        found.update()
    assert len(found.lines) <= 2 * status.MOST
    assert found.lines[-1]["round"] == 8 * status.MOST


def test_a_damaged_line_is_told_and_what_is_before_it_is_shown(tmp_path: Path) -> None:
    found = Tail(RunFolder(tmp_path))
    (tmp_path / "metrics.jsonl").write_bytes(line(1) + line(2) + b"nonsense\n" + line(4))
    assert [x["round"] for x in found.update()] == [1, 2]
    assert "damaged in line 3" in found.damage

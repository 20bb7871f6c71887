"""The status of a run while it is computed: how far, how fast, and whether anybody computes it."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.lab.runs import status
from fedstale.lab.runs.status import Status, Writer
from fedstale.lab.runs.store import RunFolder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still; its one element is the time."""
    now = [100.0]
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    return now


def test_a_status_says_how_far_and_how_fast(tmp_path: Path, clock: list[float]) -> None:
    folder = RunFolder(tmp_path)
    writer = Writer(folder, rounds=100, parameters=7, start=0)
    assert status.read(folder) == Status(0, 100, 0.0, 7, [(0, 0.0)])
    clock[0] += 0.9
    assert not writer.due()
    clock[0] += 1.1
    assert writer.due()
    writer.write(20)
    found = status.read(folder)
    assert found is not None
    assert (found.round, found.speed, found.seconds_left) == (20, 10.0, 8.0)
    assert found.seconds_at([0, 10, 20]).tolist() == [0.0, 1.0, 2.0]


def test_the_speed_is_the_one_of_the_last_seconds() -> None:
    slow_then_fast = [(0, 0.0), (1, 100.0), (101, 110.0), (201, 120.0)]
    assert Status(201, 1001, 120.0, 1, slow_then_fast).speed == 10.0
    assert Status(0, 5, 0.0, 1, [(0, 0.0)]).seconds_left is None


def test_a_resumed_run_goes_on_counting_from_its_checkpoint(tmp_path: Path, clock: list[float]) -> None:
    folder = RunFolder(tmp_path)
    writer = Writer(folder, 100, 7, start=0)
    for t in (10, 20, 30):
        clock[0] += 2
        writer.write(t)
    clock[0] += 1000  # the process is killed, and started again later from the checkpoint of round 20
    writer = Writer(folder, 100, 7, start=20)
    clock[0] += 1
    writer.write(25)
    found = status.read(folder)
    assert found is not None
    assert found.marks == [(0, 0.0), (10, 2.0), (20, 4.0), (25, 5.0)]
    assert Writer(folder, 100, 7, start=0).marks == [(0, 0.0)]  # begun anew


def test_there_are_never_many_marks_and_they_keep_the_end(tmp_path: Path, clock: list[float]) -> None:
    writer = Writer(RunFolder(tmp_path), 10_000, 7, start=0)
    for t in range(1, 1000):
        clock[0] += 1
        writer.write(t)
    found = status.read(RunFolder(tmp_path))
    assert found is not None
    assert len(found.marks) <= status.MARKS
    assert found.marks[-1] == (999, 999.0)
    assert all(a < b for a, b in itertools.pairwise(found.marks))
    assert np.allclose(found.seconds_at(np.arange(1000)), np.arange(1000))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"round": 1}', '{"round":1,"rounds":2,"seconds":0,"parameters":1,"marks":[1]}']
)
def test_a_damaged_status_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / status.FILE).write_text(text)
    assert status.read(RunFolder(tmp_path)) is None


def test_a_run_is_busy_while_it_is_locked_and_looking_does_not_lock_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert not folder.busy  # there is no folder
    with folder.locked():
        assert folder.busy
        with pytest.raises(BadInput, match="another process"), folder.locked():
            pass
    assert not folder.busy
    with folder.locked():
        pass


@pytest.mark.parametrize(("seconds", "text"), [(None, "–"), (3.2, "3 s"), (300, "5 min"), (9000, "2.5 h")])
def test_a_duration_is_said_in_its_unit(seconds: float | None, text: str) -> None:
    assert status.duration(seconds) == text

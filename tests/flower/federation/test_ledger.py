"""State on disk: whole after a kill at any moment, and refused when it is not ours."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedstale.core import BadInput
from fedstale.flower.federation.state import ledger
from fedstale.flower.federation.state.manifest import read_metrics
from fedstale.flower.federation.state.resize import arrays_of
from fedstale.lab.runs import store
from tests.flower.federation.inprocess import InProcess
from tests.flower.federation.parts import TASK, N, played, server, table


class Killed(BaseException):
    """Stands for kill -9: nothing after it runs in the server."""


def test_a_kill_at_every_write_of_a_commit_loses_no_committed_round(tmp_path, monkeypatch):
    rows, link = table(2), InProcess(TASK, range(N))
    whole = played(server(tmp_path / "whole", link), link, rows)[-1]
    points = _count_writes(tmp_path / "count", rows, monkeypatch)
    assert points > 50
    for point in range(points):
        folder = tmp_path / f"kill-{point}"
        committed = _killed_at(point, folder, rows, monkeypatch)
        link = InProcess(TASK, range(N))
        s = server(folder, link)
        state = s.ledger.load()
        t = state.checkpoint.t if state else 0
        assert t >= committed
        last = played(s, link, rows[t:])[-1] if t < 2 else None
        end = read_metrics(s.ledger.path)[-1]
        assert end["fingerprint"] == whole.line["fingerprint"]
        assert [line["round"] for line in read_metrics(s.ledger.path)] == [1, 2]
        assert last is None or np.array_equal(last.state.counts.heard, whole.state.counts.heard)


def _steps(monkeypatch, fail_at):
    """Every write and every move of a file is a step; `fail_at` is the one that is not reached."""
    seen = [0]
    write, replace = store.write, Path.replace

    def step():
        if seen[0] == fail_at:
            raise Killed
        seen[0] += 1

    def counted_write(path, writer, durable=True):
        step()
        write(path, writer, durable)
        step()

    def counted_replace(self, target):
        step()
        return replace(self, target)

    monkeypatch.setattr(store, "write", counted_write)
    monkeypatch.setattr(ledger, "write", counted_write)
    monkeypatch.setattr(Path, "replace", counted_replace)
    return seen


def _count_writes(folder, rows, monkeypatch):
    with monkeypatch.context() as m:
        seen, link = _steps(m, -1), InProcess(TASK, range(N))
        played(server(folder, link), link, rows)
    return seen[0]


def _killed_at(point, folder, rows, monkeypatch):
    """How many rounds were committed when the kill came."""
    done, link = 0, InProcess(TASK, range(N))
    with monkeypatch.context() as m:
        _steps(m, point)
        play = server(folder, link).play()
        try:
            for row in rows:
                link.there = np.flatnonzero(row).tolist()
                done = next(play).state.checkpoint.t
        except Killed:
            pass
    return done


def test_only_the_rows_that_changed_are_written(tmp_path):
    link = InProcess(TASK, range(N))
    rows = np.ones((2, N), bool)
    rows[1, 2:] = False
    played(server(tmp_path, link), link, rows)
    folder = min((tmp_path / "state" / "rows").iterdir())  # the memory itself; the other is the tracer's
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["0.2.npy", "1.2.npy", "2.1.npy", "3.1.npy", "4.1.npy", "5.1.npy"]


def test_two_servers_cannot_share_a_state(tmp_path):
    link = InProcess(TASK, range(N))
    play = server(tmp_path, link).play()
    next(play)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r})\n"
        "from pathlib import Path\nfrom tests.flower.federation.parts import *\n"
        f"next(server(Path({str(tmp_path)!r}), InProcess(TASK, range(N))).play())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert "is being computed by another process" in other.stderr
    play.close()


@pytest.mark.parametrize("change", [{"seed": 2}, {"strategy": "mifa"}, {"local": {"lr": 0.1}}, {"server": "adam"}])
def test_another_configuration_is_refused(tmp_path, change):
    link = InProcess(TASK, range(N))
    played(server(tmp_path, link), link, table(1))
    with pytest.raises(BadInput, match="another configuration"):
        next(server(tmp_path, link, **change).play())


def test_deadline_rounds_and_name_may_change(tmp_path):
    link = InProcess(TASK, range(N))
    played(server(tmp_path, link), link, table(1))
    again = server(tmp_path, link, rounds=3, round={"deadline": 7.0}, name="other")
    assert next(again.play()).line["round"] == 2


@pytest.mark.parametrize("what", ["rows/*/0.1.npy", "round-1/checkpoint.npz"])
def test_damage_is_noticed(tmp_path, what):
    link = InProcess(TASK, range(N))
    played(server(tmp_path, link), link, table(1))
    file = next((tmp_path / "state").glob(what))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(BadInput, match="damaged or missing"):
        server(tmp_path, link).ledger.load()
    file.unlink()
    with pytest.raises(BadInput, match="damaged or missing"):
        server(tmp_path, link).ledger.load()


def test_what_is_loaded_is_what_was_committed(tmp_path):
    link = InProcess(TASK, range(N))
    s = server(tmp_path, link, server="adam")
    state = played(s, link, table(4))[-1].state
    loaded = server(tmp_path, link, server="adam").ledger.load()
    assert loaded.checkpoint.t == 4
    before, after = arrays_of(state), arrays_of(loaded)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[path], after[path]) for path in before)
    assert len(list((tmp_path / "state").glob("round-*"))) == 1


def test_a_commit_does_not_read_the_metrics_of_earlier_rounds(tmp_path, monkeypatch):
    link = InProcess(TASK, range(N))
    played(server(tmp_path, link), link, table(2))
    play = server(tmp_path, link).play()
    assert next(play).line["round"] == 3  # it has loaded the state now
    read = Path.open

    def only_appended(self, mode="r", *rest, **named):
        assert self.name != "metrics.jsonl" or mode == "ab"
        return read(self, mode, *rest, **named)

    monkeypatch.setattr(Path, "open", only_appended)
    assert next(play).line["round"] == 4
    play.close()

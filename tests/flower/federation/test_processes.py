"""Processes that are known by their pids, and keepers that start them again; no Flower."""

import json
import os
import signal
import time

import pytest

from fedstale.core import BadInput
from fedstale.flower.federation.ops import keeper, processes
from fedstale.lab.runs.store import read_json

SLEEP = ["sleep", "3600"]  # longer than any test takes; stopped at its end


@pytest.fixture
def s(tmp_path):
    yield keeper.Folder(tmp_path)
    processes.stop(keeper.Folder(tmp_path), *processes.names(keeper.Folder(tmp_path)), hard=True, patience=5.0)


def until(condition):
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def kill(s, name):
    pid = processes.pid_of(s, name)
    os.kill(pid, signal.SIGKILL)
    until(lambda: processes.pid_of(s, name) != pid)


def started_before(s, name, seconds):
    """Let a process have been started so many seconds ago."""
    when = time.time() - seconds
    os.utime(s.folder / "pids" / name, (when, when))


def test_a_process_is_known_by_its_start_and_stopped_by_its_pid(s, tmp_path):
    pid = processes.spawn(s, "client-0", ["sh", "-c", f"touch {tmp_path}/made; exec sleep 3600"])
    assert processes.pid_of(s, "client-0") == pid
    # a process that is just being made has no environment yet
    until(lambda: pid in processes.family(s, "client-0") and (tmp_path / "made").exists())
    with pytest.raises(BadInput, match="is running already"):
        processes.spawn(s, "client-0", ["sleep", "3600"])
    told = read_json(tmp_path / "pids" / "client-0")
    (tmp_path / "pids" / "other").write_text(json.dumps(told | {"started": "1"}))
    assert processes.pid_of(s, "other") is None  # the same number, another process
    for private in ("made", "logs", "logs/client-0.log", "homes/client-0"):
        assert (tmp_path / private).stat().st_mode & 0o077 == 0, private
    assert processes.stop(s, "client-0", "other") == {"client-0": True, "other": False}
    assert processes.family(s, "client-0") == []
    assert processes.names(s) == []


def test_a_process_that_has_ended_is_started_again_and_one_that_was_stopped_is_not(s):
    first = processes.spawn(s, "client-0", SLEEP)
    assert not processes.revive(s, "client-0")
    kill(s, "client-0")
    assert processes.revive(s, "client-0")
    assert processes.pid_of(s, "client-0") not in (None, first)
    processes.stop(s, "client-0")
    assert not processes.revive(s, "client-0")


def test_a_process_that_dies_again_and_again_is_given_longer_pauses(s):
    processes.spawn(s, "client-0", ["true"])
    for deaths in range(8):
        until(lambda: processes.pid_of(s, "client-0") is None)
        assert read_json(s.folder / "pids" / "client-0")["deaths"] == deaths
        pause = min(2 ** (deaths - 1), processes.PAUSE) if deaths else 0
        if deaths:
            started_before(s, "client-0", pause - 0.5)
            assert not processes.revive(s, "client-0")
        started_before(s, "client-0", pause)
        assert processes.revive(s, "client-0")
    started_before(s, "client-0", processes.STEADY)
    until(lambda: processes.revive(s, "client-0"))
    assert read_json(s.folder / "pids" / "client-0")["deaths"] == 0  # it had lived for long


@pytest.mark.parametrize("text", ['{"pid": "x", "deaths": 0, "command": []}', '{"pid": 1}', "[]", "{"])
def test_a_file_that_describes_no_process_gets_a_sentence(s, text):
    (s.folder / "pids").mkdir(exist_ok=True)
    (s.folder / "pids" / "odd").write_text(text)
    for look in (processes.pid_of, processes.wanted, processes.stop):
        with pytest.raises(BadInput, match="pids/odd"):
            look(s, "odd")
    (s.folder / "pids" / "odd").unlink()


def test_an_executor_is_stopped_with_its_process(s):
    for name in ("link", "link-executor", "client-0"):
        processes.spawn(s, name, SLEEP)
    assert processes.stop(s, "link") == {"link": True}
    assert processes.names(s) == ["client-0"]


def test_keepers_start_everything_again_and_each_other(s):
    processes.spawn(s, "client-0", SLEEP)
    keeper.ensure(s)
    for name in ("client-0", *keeper.KEEPERS):  # whoever is left starts the others again
        kill(s, name)
        until(lambda name=name: processes.pid_of(s, name) is not None)
    processes.stop(s, "client-0")
    until(lambda: processes.names(s) == [])  # nothing to keep
    assert "client-0 had ended" in "".join((s.folder / "logs" / f"{n}.log").read_text() for n in keeper.KEEPERS)


def test_a_keeper_keeps_the_others_if_one_file_is_damaged(s, monkeypatch, capsys):
    pid, own, looks = processes.spawn(s, "client-0", SLEEP), s.folder / "pids" / "keeper-a", []
    own.write_text(json.dumps({"pid": os.getpid(), "started": "", "command": [], "wanted": True, "deaths": 0}))
    (s.folder / "pids" / "broken").write_text("{")
    os.kill(pid, signal.SIGKILL)
    until(lambda: processes.pid_of(s, "client-0") is None)

    def twice(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            own.unlink()

    with monkeypatch.context() as patch:
        patch.setattr(keeper, "ensure", lambda s: None)
        patch.setattr("time.sleep", twice)
        keeper.keep(s, "keeper-a")
    assert processes.pid_of(s, "client-0") not in (None, pid)
    assert capsys.readouterr().out.count("pids/broken cannot be read") == 1
    (s.folder / "pids" / "broken").unlink()


def test_a_long_log_is_put_aside_while_its_process_writes_on(s, monkeypatch):
    monkeypatch.setattr(processes, "LONGEST", 20)
    log, go = s.folder / "logs" / "client-0.log", s.folder / "go"
    script = f"echo a line of some length; while [ ! -e {go} ]; do sleep 0.05; done; echo later; exec sleep 3600"
    processes.spawn(s, "client-0", ["sh", "-c", script])
    until(lambda: log.stat().st_size > 20)
    processes.rotate(s, "client-0")
    go.touch()
    until(lambda: log.read_text() == "later\n")
    old = log.with_suffix(".log.1")
    assert old.read_text() == "a line of some length\n"
    assert old.stat().st_mode & 0o777 == 0o600
    processes.rotate(s, "client-0")
    assert log.read_text() == "later\n"
    processes.rotate(s, "no such process")

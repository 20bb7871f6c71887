"""Processes that are known by their pids, and the keeper that starts them again; no Flower."""

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from fedstale.core import BadInput
from fedstale.flower.federation.ops import keeper, launcher, processes
from fedstale.lab.runs.store import read_json

SLEEP = ["sleep", "3600"]  # longer than any test takes; stopped at its end


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    processes.stop(tmp_path, *processes.names(tmp_path), hard=True, patience=5.0)


def until(condition):
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def kill(folder, name):
    pid = processes.pid_of(folder, name)
    os.kill(pid, signal.SIGKILL)
    until(lambda: processes.pid_of(folder, name) != pid)


def started_before(folder, name, seconds):
    """Let a process have been started so many seconds ago."""
    when = time.time() - seconds
    os.utime(folder / "pids" / name, (when, when))


def test_a_process_is_known_by_its_start_and_stopped_by_its_pid(folder, tmp_path):
    pid = processes.spawn(folder, "client-0", ["sh", "-c", f"touch {tmp_path}/made; exec sleep 3600"])
    assert processes.pid_of(folder, "client-0") == pid
    # a process that is just being made has no environment yet
    until(lambda: pid in processes.family(folder, "client-0") and (tmp_path / "made").exists())
    with pytest.raises(BadInput, match="is running already"):
        processes.spawn(folder, "client-0", ["sleep", "3600"])
    told = read_json(tmp_path / "pids" / "client-0")
    (tmp_path / "pids" / "other").write_text(json.dumps(told | {"started": "1"}))
    assert processes.pid_of(folder, "other") is None  # the same number, another process
    for private in ("made", "logs", "logs/client-0.log", "homes/client-0"):
        assert (tmp_path / private).stat().st_mode & 0o077 == 0, private
    assert processes.stop(folder, "client-0", "other") == {"client-0": True, "other": False}
    assert processes.family(folder, "client-0") == []
    assert processes.names(folder) == []


def test_a_process_that_has_ended_is_started_again_and_one_that_was_stopped_is_not(folder):
    first = processes.spawn(folder, "client-0", SLEEP)
    assert not processes.revive(folder, "client-0")
    kill(folder, "client-0")
    assert processes.revive(folder, "client-0")
    assert processes.pid_of(folder, "client-0") not in (None, first)
    processes.stop(folder, "client-0")
    assert not processes.revive(folder, "client-0")


def test_a_process_that_dies_again_and_again_is_given_longer_pauses(folder):
    processes.spawn(folder, "client-0", ["true"])
    for deaths in range(8):
        until(lambda: processes.pid_of(folder, "client-0") is None)
        assert read_json(folder / "pids" / "client-0")["deaths"] == deaths
        pause = min(2 ** (deaths - 1), processes.PAUSE) if deaths else 0
        if deaths:
            started_before(folder, "client-0", pause - 0.5)
            assert not processes.revive(folder, "client-0")
        started_before(folder, "client-0", pause)
        assert processes.revive(folder, "client-0")
    started_before(folder, "client-0", processes.STEADY)
    until(lambda: processes.revive(folder, "client-0"))
    assert read_json(folder / "pids" / "client-0")["deaths"] == 0  # it had lived for long


@pytest.mark.parametrize("text", ['{"pid": "x", "deaths": 0, "command": []}', '{"pid": 1}', "[]", "{"])
def test_a_file_that_describes_no_process_gets_a_sentence(folder, text):
    (folder / "pids").mkdir(exist_ok=True)
    (folder / "pids" / "odd").write_text(text)
    for look in (processes.pid_of, processes.wanted, processes.stop):
        with pytest.raises(BadInput, match="pids/odd"):
            look(folder, "odd")
    (folder / "pids" / "odd").unlink()


def test_an_executor_is_stopped_with_its_process(folder):
    for name in ("link", "link-executor", "client-0"):
        processes.spawn(folder, name, SLEEP)
    assert processes.stop(folder, "link") == {"link": True}
    assert processes.names(folder) == ["client-0"]


KEPT = "from fedstale.flower.federation.ops.keeper import keep_the_keeper as k; import time; k(); time.sleep(3600)"


def test_the_keeper_starts_a_process_again_and_the_process_the_keeper(folder):
    processes.spawn(folder, "client-0", [sys.executable, "-c", KEPT])
    keeper.ensure(folder)
    for name in ("client-0", keeper.KEEPER):  # whoever is left starts the other again
        kill(folder, name)
        until(lambda name=name: processes.pid_of(folder, name) is not None)
    processes.stop(folder, "client-0")
    until(lambda: processes.names(folder) == [])  # nothing to keep
    assert "client-0 had ended" in (folder / "logs" / "keeper.log").read_text()


def test_a_process_that_nobody_keeps_starts_no_keeper(folder, monkeypatch):
    monkeypatch.delenv(processes.KEPT, raising=False)
    monkeypatch.setattr(threading, "Thread", None)
    keeper.keep_the_keeper()


def test_a_keeper_keeps_the_others_if_one_file_is_damaged(folder, monkeypatch, capsys):
    pid, own, looks = processes.spawn(folder, "client-0", SLEEP), folder / "pids" / "keeper", []
    own.write_text(json.dumps({"pid": os.getpid(), "started": "", "command": [], "wanted": True, "deaths": 0}))
    (folder / "pids" / "broken").write_text("{")
    os.kill(pid, signal.SIGKILL)
    until(lambda: processes.pid_of(folder, "client-0") is None)

    def twice(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            own.unlink()

    with monkeypatch.context() as patch:
        patch.setattr("time.sleep", twice)
        keeper.keep(folder)
    assert processes.pid_of(folder, "client-0") not in (None, pid)
    assert capsys.readouterr().out.count("pids/broken cannot be read") == 1
    (folder / "pids" / "broken").unlink()


def test_a_long_log_is_put_aside_while_its_process_writes_on(folder, monkeypatch):
    monkeypatch.setattr(processes, "LONGEST", 20)
    log, go = folder / "logs" / "client-0.log", folder / "go"
    script = f"echo a line of some length; while [ ! -e {go} ]; do sleep 0.05; done; echo later; exec sleep 3600"
    processes.spawn(folder, "client-0", ["sh", "-c", script])
    until(lambda: log.stat().st_size > 20)
    processes.rotate(folder, "client-0")
    go.touch()
    until(lambda: log.read_text() == "later\n")
    old = log.with_suffix(".log.1")
    assert old.read_text() == "a line of some length\n"
    assert old.stat().st_mode & 0o777 == 0o600
    processes.rotate(folder, "client-0")
    assert log.read_text() == "later\n"
    processes.rotate(folder, "no such process")


def test_a_free_port_is_none_that_the_system_gives_to_outgoing_connections(monkeypatch):
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    port = launcher.free_port()
    assert not first <= port <= last
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        monkeypatch.setattr(launcher, "PORTS", range(port, port + 1))
        with pytest.raises(BadInput, match=r"every port .* is in use"):
            launcher.free_port()

"""The processes of a federation: start, find, restart and stop them. Each is known by its pid and its start time.

DIR/pids/NAME holds the pid and the command of a process. A process whose file says that it is wanted, and which has
ended, is started again by the keeper (keeper.py). All that a process starts shares its FLWR_HOME, and is stopped
with it.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedstale.core import require
from fedstale.core.system import lock
from fedstale.lab.runs.store import read_json, write_json

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
EXECUTOR = "-executor"  # NAME-executor starts apps for NAME and is stopped with it
KEPT = "FEDSTALE_KEPT"  # tells a process the file in pids/ that it is known by
PROC = Path("/proc")
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
STEADY = 20.0  # seconds after which the death of a process is not held against the next one
LONGEST = 10 << 20  # bytes of a log, after which it becomes NAME.log.1 and begins anew
PAUSE = 10.0  # seconds, the longest from one start to the next of a process that dies again and again


def environment(home: Path) -> dict[str, str]:
    """The environment of this process with Flower's telemetry off, its home in `home`, and its programs on PATH."""
    rest = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry != str(BIN)]
    return os.environ | QUIET | {"FLWR_HOME": str(home.resolve()), "PATH": os.pathsep.join([str(BIN), *rest])}


def spawn(folder: Path, name: str, command: Sequence[str | Path]) -> int:
    """Start a process that outlives this one and that the keeper starts again; its output is in logs/NAME.log."""
    with _locked(folder):
        old = pid_of(folder, name)
        require(old is None, f"{name} is running already (pid {old})")
        return _start(folder, name, [str(c) for c in command], deaths=0)


def revive(folder: Path, name: str, command: Sequence[str] = (), patient: bool = True) -> bool:
    """Start a process that is wanted and has ended, or that never was, if its command is given.

    A process that dies again and again is given longer and longer pauses, unless somebody is not `patient`.
    """
    with _locked(folder):
        saved = _record(folder, name) or {"wanted": bool(command), "command": list(command), "deaths": 0}
        if not saved["wanted"] or pid_of(folder, name) is not None:
            return False
        file, deaths = folder / "pids" / name, int(saved["deaths"])
        age = abs(time.time() - file.stat().st_mtime) if file.exists() else STEADY
        if patient and deaths and age < min(2.0 ** (deaths - 1), PAUSE):
            return False
        _start(folder, name, saved["command"], deaths=0 if age >= STEADY else deaths + 1)
        return True


def rotate(folder: Path, name: str) -> None:
    """Keep the output of a process from filling the disk: a long file is copied to NAME.log.1 and emptied."""
    log = folder / "logs" / f"{name}.log"
    with _locked(folder), suppress(FileNotFoundError):
        if log.stat().st_size > LONGEST:
            shutil.copy2(log, log.with_suffix(".log.1"))  # with its mode: only the owner can read it
            os.truncate(log, 0)  # the process appends to it, so it goes on at the beginning


def _start(folder: Path, name: str, command: list[str], deaths: int) -> int:
    """Only the owner can read what it writes: the link's database, and the state of the server that it starts."""
    for made in (home(folder, name), folder / "logs", folder / "pids"):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(folder / "logs" / f"{name}.log", APPEND, 0o600), "ab") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, umask=0o077,
            env=environment(home(folder, name)) | {KEPT: str(folder.resolve() / "pids" / name)},
            start_new_session=True,
        )  # fmt: skip
    process.returncode = 0  # it lives on without this object, known by its pid
    known = {"pid": process.pid, "started": started(process.pid), "command": command}
    write_json(folder / "pids" / name, known | {"wanted": True, "deaths": deaths})
    return process.pid


def pid_of(folder: Path, name: str) -> int | None:
    """The pid of a process that this folder started, if it is alive: a reused pid has another start time."""
    saved = _record(folder, name)
    if not saved:
        return None
    pid = int(saved["pid"])
    there = not ended(pid)  # asked first: its children watch for its end, and see none while it is a zombie
    return pid if there and started(pid) == saved["started"] else None


def names(folder: Path) -> list[str]:
    """The processes that were started from this folder."""
    return sorted(p.name for p in (folder / "pids").glob("[!.]*"))


def wanted(folder: Path, name: str) -> bool:
    """Whether a process was started and nobody has stopped it."""
    return bool(_record(folder, name).get("wanted"))


def stop(folder: Path, *given: str, patience: float = 10.0, hard: bool = False) -> dict[str, bool]:
    """Stop processes, their executors and all that they started; returns which of those given were running.

    `hard` is kill -9, at once.
    """
    with _locked(folder):
        executors = [name for name in names(folder) if name.removesuffix(EXECUTOR) in given]
        pids = {name: pid_of(folder, name) for name in (*given, *executors)}
        for name in pids:
            if saved := _record(folder, name):
                write_json(folder / "pids" / name, saved | {"wanted": False})
    heads = [pid for pid in pids.values() if pid is not None]
    for head in heads:
        _signal(head, signal.SIGKILL if hard else signal.SIGTERM)
    until = time.monotonic() + patience
    while sum(map(ended, heads)) < len(heads) and time.monotonic() < until:
        time.sleep(0.1)
    for name, pid in pids.items():
        for member in family(folder, name):
            _signal(member, signal.SIGKILL)
        if pid is not None:
            ended(pid)
        forget(folder, name)
    return {name: pids[name] is not None for name in given}


def forget(folder: Path, name: str) -> None:
    """Remove the file of a process that has ended for good."""
    (folder / "pids" / name).unlink(missing_ok=True)


def ended(pid: int) -> bool:
    """Whether a process is not there any more; collects its exit status if it is a child."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return started(pid) is None


def family(folder: Path, name: str) -> list[int]:
    """All processes that were started as NAME or by it, orphans too: they share FLWR_HOME."""
    mark = f"\0FLWR_HOME={home(folder, name)}\0".encode()
    found = []
    for file in PROC.glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in b"\0" + file.read_bytes() and started(int(file.parent.name)) is not None:
                found.append(int(file.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def command(pid: int) -> str:
    """The command line of a process, empty if there is none."""
    try:
        return (PROC / str(pid) / "cmdline").read_text()
    except OSError:
        return ""


def home(folder: Path, name: str) -> Path:
    """Flower's folder for a process."""
    return (folder / "homes" / name).resolve()


def started(pid: int) -> str | None:
    """When a live process was started, in clock ticks; None if there is none, or only a zombie."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        require((PROC / "self").exists(), "a federation needs Linux: this system has no /proc")
        return None
    return None if fields[0] in "ZX" else fields[19]


def _record(folder: Path, name: str) -> dict[str, Any]:
    file = folder / "pids" / name
    saved = read_json(file) if file.exists() else {}
    kinds = [type(saved.get(key)) for key in ("pid", "deaths", "command")]
    ok = not saved or kinds == [int, int, list]
    require(ok, f"{file} does not describe a process: end what runs as {name} yourself, and remove the file")
    return saved


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One at a time looks whether a process is alive and starts or stops it."""
    (folder / "pids").mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "pids" / ".lock").open("w") as file:
        lock(file, wait=True)
        yield


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)

"""Start, find and stop the processes of a federation. Each is known by its pid and its start time.

DIR/federation.toml, roster.json, app/   written by the user
DIR/keys/                                CA, server certificate, client keys
DIR/link.sqlite                          database of Flower's SuperLink
DIR/state/                               state of the server (state/ledger.py)
DIR/logs/, pids/, flwr/, homes/          of the processes; only the owner can read them
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedstale.core import BadInput, require
from fedstale.federation.settings import Settings
from fedstale.runs.store import read_json, write_json

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
CONNECTION = "fedstale"
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def environment(home: Path) -> dict[str, str]:
    """This process's environment, with Flower's telemetry off, its home in `home`, and its programs on PATH."""
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | QUIET | {"FLWR_HOME": str(home.resolve()), "PATH": path}


def start_link(s: Settings) -> int:
    """Start the SuperLink and wait until it listens; returns its pid."""
    link, keys = s.file.link, s.folder / "keys"
    command: list[str | Path] = [
        sys.executable, "-m", "fedstale.federation.ops.superlink", s.folder.resolve(),
        "--host", link.host, "--port", str(link.port),
        "--database", s.folder / "link.sqlite", "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    if link.tls:
        for name, file in (("certfile", "server.pem"), ("keyfile", "server.key"), ("ca-certfile", "ca.pem")):
            command += [f"--ssl-{name}", keys / file]
        command.append("--enable-supernode-auth")
    else:
        command.append("--insecure")
    pid = spawn(s, "link", command)
    wait_for_port(link.host, link.port, pid)
    return pid


def start_node(s: Settings, client: int) -> int:
    """Start the SuperNode of a client of the roster, with its key; returns its pid."""
    link, keys, name = s.file.link, s.folder / "keys", f"client-{client}"
    command: list[str | Path] = [
        BIN / "flower-supernode", "--superlink", f"{link.host}:{link.port}",
        "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", f"client={client}",
    ]  # fmt: skip
    if link.tls:
        require((keys / name).exists(), f"there is no private key {keys / name} for client {client}")
        command += ["--root-certificates", keys / "ca.pem", "--auth-supernode-private-key", keys / name]
    else:
        command.append("--insecure")
    return spawn(s, name, command)


def spawn(s: Settings, name: str, command: Sequence[str | Path]) -> int:
    """Start a process that outlives this one, with its output in logs/NAME.log and its pid in pids/NAME.

    Only the owner can read what it writes: the link's database, and the state of the server that it starts.
    """
    old = pid_of(s, name)
    require(old is None, f"{name} is running already (pid {old})")
    for folder in (home(s, name), s.folder / "logs", s.folder / "pids"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(s.folder / "logs" / f"{name}.log", APPEND, 0o600), "ab") as out:
        process = subprocess.Popen(
            [str(c) for c in command], stdout=out, stderr=out, stdin=subprocess.DEVNULL, umask=0o077,
            env=environment(home(s, name)), start_new_session=True,
        )  # fmt: skip
    process.returncode = 0  # it lives on without this object, known by its pid
    write_json(s.folder / "pids" / name, {"pid": process.pid, "started": _started(process.pid)})
    return process.pid


def pid_of(s: Settings, name: str) -> int | None:
    """The pid of a process that this folder started, if it is alive: a reused pid has another start time."""
    file = s.folder / "pids" / name
    if not file.exists():
        return None
    saved = read_json(file)
    reap(int(saved["pid"]))  # its children watch for its end, and see none while it is a zombie
    return int(saved["pid"]) if _started(int(saved["pid"])) == saved["started"] is not None else None


def names(s: Settings) -> list[str]:
    """The processes that were started from this folder."""
    return sorted(p.name for p in (s.folder / "pids").glob("*"))


def stop(s: Settings, *names: str, patience: float = 10.0, hard: bool = False) -> dict[str, bool]:
    """Stop processes and all that they started; returns which were running. `hard` is kill -9, at once."""
    pids = {name: pid_of(s, name) for name in names}
    heads = [pid for pid in pids.values() if pid is not None]
    for head in heads:
        _signal(head, signal.SIGKILL if hard else signal.SIGTERM)
    until = time.monotonic() + patience
    while any(_started(p) is not None for p in heads) and time.monotonic() < until:
        time.sleep(0.1)
        for head in heads:
            reap(head)
    for name, pid in pids.items():
        for member in family(s, name):
            _signal(member, signal.SIGKILL)
        if pid is not None:
            reap(pid)
        (s.folder / "pids" / name).unlink(missing_ok=True)
    return {name: pid is not None for name, pid in pids.items()}


def reap(pid: int) -> None:
    """Collect the exit status of a child that has ended, if it is one."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def family(s: Settings, name: str) -> list[int]:
    """All processes that were started as NAME or by it, orphans too: they share FLWR_HOME."""
    mark = f"\0FLWR_HOME={home(s, name)}\0".encode()
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in b"\0" + file.read_bytes() and _started(int(file.parent.name)) is not None:
                found.append(int(file.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def home(s: Settings, name: str) -> Path:
    """Flower's folder for a process."""
    return (s.folder / "flwr" if name == "link" else s.folder / "homes" / name).resolve()


def _started(pid: int) -> str | None:
    """When a live process was started, in clock ticks; None if there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def listens(host: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_for_port(host: str, port: int, pid: int, patience: float = 60.0) -> None:
    """Wait until process `pid` listens; raises BadInput if it ends, or does not within `patience` seconds."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        reap(pid)
        require(_started(pid) is not None, "the link ended at once; logs/link.log says why")
        if listens(host, port):
            return
        time.sleep(0.2)
    raise BadInput(f"nothing listens on {host}:{port} after {patience:g} s; logs/link.log says why")

"""Start the parts of a federation: the link, which clients connect to, and the clients.

DIR/federation.toml, roster.json, app/   written by the user
DIR/keys/                                CA, server certificate, client keys
DIR/link.sqlite                          database of Flower's SuperLink
DIR/state/                               state of the server (state/ledger.py)
DIR/logs/, pids/, flwr/, homes/          of the processes; only the owner can read them

Or let systemd start them: `units` are its files, with limits and little that the processes may touch.
"""

import getpass
import json
import random
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path

from fedstale.core import BadInput, require
from fedstale.flower.federation.client.notes import noted
from fedstale.flower.federation.ops import processes
from fedstale.flower.federation.ops.keeper import ensure
from fedstale.flower.federation.settings import Settings
from fedstale.lab.runs.store import write_secret

PORTS = range(20_000, 32_000)  # below those of outgoing connections, which could take one before it is used
UNIT = files("fedstale.cli") / "templates" / "federation" / "unit.service.txt"
ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?")
AGAIN = "always\nRestartSec=5"
UNTIL_DONE = "on-failure\nRestartSec=30\nRestartPreventExitStatus=2 5"  # unusable input, or too little weight heard
Command = list[str | Path]


def start_link(s: Settings) -> int:
    """Start the SuperLink, with the executor of the server's app; returns its pid. It does not listen yet."""
    link, keys = s.file.link, s.folder / "keys"
    command: Command = [
        sys.executable, "-m", "fedstale.flower.federation.ops.superlink", s.folder.resolve(),
        "--host", link.host, "--port", str(link.port),
        "--database", s.folder / "link.sqlite", "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    if link.tls:
        for name, file in (("certfile", "server.pem"), ("keyfile", "server.key"), ("ca-certfile", "ca.pem")):
            command += [f"--ssl-{name}", keys / file]
        command.append("--enable-supernode-auth")
    else:
        command.append("--insecure")
    pid = _with_executor(s, "link", command, f"{link.host}:{link.port}", keys / "ca.pem" if link.tls else None)
    ensure(s.folder)
    return pid


def revive_all(s: Settings) -> list[str]:
    """Start again what is wanted and has ended, at once, the keeper too; returns the names."""
    revived = [name for name in processes.names(s.folder) if processes.revive(s.folder, name, patient=False)]
    if processes.names(s.folder):
        ensure(s.folder)
    return revived


def start_client(s: Settings, client: int, isolated: bool = False) -> int:
    """Start a client of the roster and return its pid; an isolated one trains in a new process per message."""
    name, key = f"client-{client}", private_key(s, client)
    if isolated:
        pid = _start_supernode(s, client, key)
    else:
        join: Command = ["federation", "join", s.folder.resolve(), str(client), "--foreground"]
        pid = processes.spawn(s.folder, name, [sys.executable, "-m", "fedstale", *join])
    ensure(s.folder)
    return pid


def start_run(s: Settings) -> int:
    """Start `fedstale federation run` in the background, again and again until all rounds are committed."""
    command: Command = [sys.executable, "-m", "fedstale", "federation", "run", s.folder.resolve()]
    pid = processes.spawn(s.folder, "run", command)
    ensure(s.folder)
    return pid


def _start_supernode(s: Settings, client: int, key: Path) -> int:
    """Flower's own client, which starts a process for every message."""
    link, port = s.file.link, str(free_port())
    command: Command = [
        processes.BIN / "flower-supernode", "--superlink", f"{link.host}:{link.port}",
        "--host", "127.0.0.1", "--port", port, "--node-config", f'client={client} own="{s.own(client)}"',
        "--root-certificates", s.folder / "keys" / "ca.pem", "--auth-supernode-private-key", key,
    ]  # fmt: skip
    require(link.tls, "--isolated needs TLS: Flower's own SuperNode does not sign in without it")
    return _with_executor(s, f"client-{client}", command, f"127.0.0.1:{port}", None)


def _with_executor(s: Settings, name: str, command: Command, address: str, authority: Path | None) -> int:
    """Start a process of Flower and, as a process of its own that can be restarted, what it would start itself."""
    file = processes.home(s.folder, name) / "secret"  # only this process and its executor can read it
    if not file.exists():  # another one would shut out every executor that starts after a link that runs already
        write_secret(file, secrets.token_bytes(32))
    secret: Command = ["--superexec-auth-secret-file", file]
    pid = processes.spawn(s.folder, name, [*command, "--isolation", "process", *secret])
    trust: Command = ["--root-certificates", authority] if authority else ["--insecure"]
    executor: Command = [sys.executable, "-m", "fedstale.flower.federation.ops.superexec"]
    processes.spawn(
        s.folder, name + processes.EXECUTOR, [*executor, "--runtime-api-address", address, *trust, *secret]
    )
    return pid


def private_key(s: Settings, client: int) -> Path:
    """The file of a client's private key, checked."""
    from fedstale.flower.federation.ops import keys

    key = s.folder / "keys" / f"client-{client}"
    require(key.exists(), f"there is no private key {key} for client {client}")
    keys.private_key(key)
    return key


def stop_all(s: Settings, patience: float = 10.0, hard: bool = False) -> dict[str, bool]:
    """Stop everything that was started from this folder; the link last, so that clients can say good-bye."""
    rest = [name for name in processes.names(s.folder) if not name.startswith("link")]
    stop = partial(processes.stop, s.folder, patience=patience, hard=hard)
    return stop(*rest) | stop("link")


def stay(s: Settings, name: str) -> None:
    """Stay while a process is wanted, and stop it when this one is stopped with SIGTERM or Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while processes.wanted(s.folder, name):
            time.sleep(1)
    finally:
        processes.stop(s.folder, name)


def wait_for_clients(s: Settings, clients: Sequence[int], patience: float = 15.0) -> dict[int, str]:
    """Wait until the clients of this machine are online or say what is in the way; returns what they say."""
    until, names = time.monotonic() + patience, {k: f"client-{k}" for k in clients}
    while True:
        said = {k: noted(processes.home(s.folder, name)) for k, name in names.items()}
        here = {k: processes.pid_of(s.folder, name) for k, name in names.items()}
        states = {k: str(x["state"]) if x and x.get("pid") == here[k] else "starting" for k, x in said.items()}
        if time.monotonic() > until or not {"starting", "signing in"} & {*states.values()}:
            return states
        time.sleep(0.2)


def free_port() -> int:
    """A port of this machine that nobody listens on, and that the system gives to no outgoing connection."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise BadInput(f"every port from {PORTS[0]} to {PORTS[-1]} is in use")


def units(s: Settings, user: str | None = None) -> dict[str, str]:
    """File name → text of the units of a federation. The server's app runs within the unit of the link."""
    user = user or getpass.getuser()
    require(ACCOUNT.fullmatch(user) is not None, f"--user must be the name of an account, got {user!r}")
    name, folder, python = s.file.name, _quoted(s.folder.resolve()), _quoted(Path(sys.executable))
    link = f"{name}-link.service"
    made = {
        link: ("link and server", f"up {folder} --foreground", AGAIN, "80%", ""),
        f"{name}-run.service": ("training", f"run {folder}", UNTIL_DONE, "2G", f" {link}\nRequires={link}"),
        f"{name}-client@.service": ("client %i", f"join {folder} %i --foreground", AGAIN, "80%", ""),
    }
    return {
        file: UNIT.read_text().format(
            title=f"Federation {name}: {what}", command=command, restart=restart, memory=memory, after=after,
            user=user, python=python, folder=folder,
        )
        for file, (what, command, restart, memory, after) in made.items()
    }  # fmt: skip


def write_units(s: Settings, target: Path, user: str | None = None) -> list[Path]:
    """Write the units to a folder; returns their files."""
    target.mkdir(parents=True, exist_ok=True)
    made = units(s, user)
    for name, text in made.items():
        (target / name).write_text(text)
    return [target / name for name in made]


def _quoted(path: Path) -> str:
    """A path as a word of a unit, in which % means something."""
    text = str(path).replace("%", "%%")
    return json.dumps(text, ensure_ascii=False) if " " in text else text

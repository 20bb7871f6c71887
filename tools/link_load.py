"""What requests of idle clients cost the link: `python -m tools.link_load 50 200 1000`.

One process has the keys of all clients of a federation, signs them in, and sends what idle clients send. The link
is a process of its own, with TLS and signatures; its CPU time is read before and after. Printed for each number of
clients: milliseconds for the first poll of a client, for one of its later polls, and for a heartbeat; and the share
of a core that all clients need while there is nothing to do.

`python -m tools.link_load --together 1000` lets so many clients be there at once, each with a connection, a
heartbeat and the pauses of a real one, in threads of this process. Printed: the share of a core that the link uses
for a minute in which nothing happens, and the seconds and the link's CPU of rounds of tiny updates.
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from fedstale.cli import federation as cli
from fedstale.core import require
from fedstale.flower import task_app
from fedstale.flower.federation import adapter, settings
from fedstale.flower.federation.client import warm
from fedstale.flower.federation.client.fleet import BEAT, INTERVAL, LESS, Crowd, Fleet
from fedstale.flower.federation.client.notes import Notes
from fedstale.flower.federation.client.warm import LOOKS
from fedstale.flower.federation.ops import control, keys, launcher, processes, runner
from fedstale.flower.federation.state.manifest import read_metrics
from fedstale.tasks.quadratic import Quadratic
from tools.federation_chaos import online, write_app

REQUESTS = 300  # of each kind
QUIET, ROUNDS = 60.0, 1  # with --together: seconds without orders, and rounds after them
STAGGER = 0.02  # seconds from the start of one client to that of the next, all in one process


class Everybody:
    """Signs a request as the client whose turn it is."""

    def __init__(self, folder: Path, clients: int) -> None:
        private = [keys.private_key(folder / "keys" / f"client-{k}") for k in range(clients)]
        self.public = [adapter.public_key_to_bytes(key.public_key()) for key in private]
        self.signers = [adapter.NodeAuthHttpInterceptor(key, key.public_key()) for key in private]
        self.turn = 0

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        return self.signers[self.turn].intercept(context, call_next)


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def started(s: settings.Settings) -> subprocess.Popen[bytes]:
    """The link alone, without executor and keepers."""
    link, own = s.file.link, s.folder / "keys"
    command: list[str | Path] = [
        sys.executable, "-m", "fedstale.flower.federation.ops.superlink", s.folder, "--host", link.host,
        "--port", str(link.port), "--database", s.folder / "link.sqlite", "--isolation", "process",
        "--disable-runtime-dependency-installation", "--enable-supernode-auth", "--ssl-ca-certfile", own / "ca.pem",
        "--ssl-certfile", own / "server.pem", "--ssl-keyfile", own / "server.key",
    ]  # fmt: skip
    with (s.folder / "link.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=processes.environment(s.folder / "home"))


def measured(folder: Path, clients: int) -> dict[str, float]:
    """Milliseconds of the link's CPU for each kind of request, and the share of a core for all idle clients."""
    cli.init(folder, clients=clients, rounds=1, port=launcher.free_port())
    s = settings.read(folder)
    link, crowd, who = started(s), Crowd(), Everybody(folder, clients)
    try:
        control.wait_until_ready(s)
        control.register(s)
        version = adapter.RuntimeVersionHttpInterceptor(component_name="SuperNode")
        address, authority = f"{s.file.link.host}:{s.file.link.port}", keys.certificate(folder / "keys" / "ca.pem")
        client = adapter.FleetHttpClient.from_server_address(address, False, authority, [crowd, version, who])
        nodes = []

        def spent(calls: int, call: Callable[[int], Any]) -> float:
            before = cpu(link.pid)
            for k in range(calls):
                who.turn = k % clients
                call(who.turn)
            return 1000 * (cpu(link.pid) - before) / calls

        def sign_in(k: int) -> None:
            request = adapter.ActivateNodeRequest(public_key=who.public[k], heartbeat_interval=INTERVAL)
            nodes.append(adapter.Node(node_id=client.ActivateNode(request).node_id))

        def poll(k: int) -> None:
            assert not client.PullMessages(adapter.PullMessagesRequest(node=nodes[k])).messages_list

        def beat(k: int) -> None:
            request = adapter.SendNodeHeartbeatRequest(node=nodes[k], heartbeat_interval=INTERVAL)
            assert client.SendNodeHeartbeat(request).success

        found = {"sign in": spent(clients, sign_in), "first poll": spent(clients, poll)}
        found |= {"poll": spent(REQUESTS, poll), "heartbeat": spent(REQUESTS, beat)}
        polls, beats = 1 / (LOOKS[1] * crowd.slower()), 1 / (BEAT * crowd.slower(LESS))  # per second, of a client
        return found | {"core": clients * (polls * found["poll"] + beats * found["heartbeat"]) / 1000}
    finally:
        link.terminate()
        link.wait()


class Loaded:
    """The app of one client, which is the same in every run."""

    def __init__(self, task: Quadratic, client: int) -> None:
        context = Context(1, 1, {"client": client}, RecordDict(), {})
        self.app = warm.Loaded(1, Path(), task_app(lambda _: (task, client)), context)

    def of(self, number: int) -> warm.Loaded:
        return self.app


def live(s: settings.Settings, client: int, task: Quadratic) -> None:
    """Be a client to the end of this process."""
    link, notes = s.file.link, Notes(s.folder / "many" / str(client))
    own = s.folder / "keys"
    fleet = Fleet(f"{link.host}:{link.port}", own / "ca.pem", own / f"client-{client}", notes)
    fleet.crowd.clients = task.n  # otherwise all begin as in a small federation
    warm.stay(fleet, Loaded(task, client), notes)  # type: ignore[arg-type]  # as far as it is used


def together(folder: Path, clients: int) -> Iterator[tuple[str, float]]:
    """The share of a core that the link uses while nothing happens, and what rounds take, as it becomes known."""
    write_app(folder / "app")
    app = folder / "app" / "chaos" / "apps.py"
    app.write_text(app.read_text().replace("random(3,", f"random({clients},"))
    cli.init(
        folder, clients=clients, rounds=ROUNDS, deadline=1800.0, port=launcher.free_port(), app=folder / "app",
        strategy="fedavg",
    )  # fmt: skip
    s, task = settings.read(folder), Quadratic.random(clients, 40, seed=3, noise=0.2)
    try:
        pid, began = launcher.start_link(s), time.monotonic()
        control.wait_until_ready(s)
        control.register(s)
        for k in range(clients):
            threading.Thread(target=live, args=(s, k, task), daemon=True).start()
            time.sleep(STAGGER)
        while (there := online(s)) < clients:
            require(time.monotonic() - began < 1800, f"{there} of {clients} clients are online")
            time.sleep(1.0)
        yield "seconds until all are online", time.monotonic() - began
        time.sleep(QUIET)  # their first polls are over
        before, began = cpu(pid), time.monotonic()
        time.sleep(QUIET)
        yield "cores while idle", (cpu(pid) - before) / (time.monotonic() - began)
        yield "online", online(s)
        before, began = cpu(pid), time.monotonic()
        for event in runner.run(s):
            print(f"{time.monotonic() - began:.0f} s: {event.kind} {event.t} {event.text}", flush=True)
        for line in (lines := read_metrics(s.state)):
            yield f"seconds of round {line['round']}", line["seconds"]
            yield f"heard in round {line['round']}", len(line["heard"])
        yield "the link's CPU seconds per round", (cpu(pid) - before) / len(lines)
    finally:
        threading.excepthook = lambda _: None  # clients whose link and folder are gone
        launcher.stop_all(s, patience=2.0, hard=True)


def main() -> None:
    if sys.argv[1:2] == ["--together"]:
        threading.stack_size(512 << 10)  # two threads for each client
        with tempfile.TemporaryDirectory() as folder:
            for name, value in together(Path(folder) / "f", int(sys.argv[2])):
                print(f"{name}: {value:.2f}", flush=True)
        return
    for clients in map(int, sys.argv[1:] or ["50"]):
        with tempfile.TemporaryDirectory() as folder:
            began, found = time.monotonic(), measured(Path(folder) / "f", clients)
        told = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
        print(f"{clients} clients: {told} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()

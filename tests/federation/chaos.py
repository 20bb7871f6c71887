"""Kill -9 at random moments, again and again: `python -m tests.federation.chaos --kills 50`.

A federation on the loopback, with TLS and keys, trains while its parts are killed: the server's app, the link,
a client's node, a client's app. Nodes are started again as systemd would, the link and the server as
`fedstale federation run` does. What must hold: every committed round stays committed, the next round comes at
most a deadline and a restart after the last kill, and the end is that of a simulation, never disturbed, with
the participation that was recorded.
"""

import argparse
import csv
import os
import secrets
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fedstale.cli import federation as cli
from fedstale.core import require
from fedstale.engines import Serial
from fedstale.federation import settings
from fedstale.federation.ops import control, launcher, runner
from fedstale.federation.server.diagnostics import trace
from fedstale.federation.state.manifest import committed_round, read_metrics
from fedstale.registry import PARTICIPATION
from fedstale.runs.store import fingerprint
from fedstale.simulate import simulate
from fedstale.tasks.quadratic import Quadratic

CLIENTS, DEADLINE, RESTART = 3, 30.0, 150.0
BURST = 4  # kills at most from one committed round to the next: something must be there to be lost
TARGETS = ("server", "link", "node", "client app")
TASK = "from fedstale.tasks.quadratic import Quadratic\n\ntask = Quadratic.random(3, 40, seed=3, noise=0.2)\n"
APP = {
    "pyproject.toml": """\
[project]
name = "chaos"
version = "1.0.0"
description = "Quadratics"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "fedstale"
[tool.flwr.app.components]
serverapp = "chaos.apps:server"
clientapp = "chaos.apps:client"
[tool.flwr.app.config]
federation = ""
""",
    "chaos/__init__.py": "",
    "chaos/apps.py": TASK.replace(
        "\n\n",
        "\nfrom fedstale.flower import server_app, task_app\n\n",
    )
    + "client = task_app(lambda context: (task, int(context.node_config['client'])))\n"
    + "server = server_app(task.init)\n",
}


def task() -> Quadratic:
    return Quadratic.random(CLIENTS, 40, seed=3, noise=0.2)


def prepare(folder: Path, rounds: int, tls: bool = True) -> settings.Settings:
    """A federation of quadratics that is up, with all clients joining."""
    for path, text in APP.items():
        (folder / "app" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "app" / path).write_text(text)
    cli.init(
        folder, clients=CLIENTS, rounds=rounds, deadline=DEADLINE, port=launcher.free_port(), app=folder / "app",
        tls=tls,
    )  # fmt: skip
    s = settings.read(folder)
    launcher.start_link(s)
    control.wait_until_ready(s)
    control.register(s)
    for client in range(CLIENTS):
        launcher.start_node(s, client)
    return s


def replayed(s: settings.Settings) -> str:
    """The fingerprint of a simulation with the recorded participation."""
    clients, table = trace(read_metrics(s.state))
    require(clients == list(range(CLIENTS)), f"the trace must be of clients 0 to {CLIENTS - 1}, got {clients}")
    engine, rules = Serial(task(), s.local), s.rules
    *_, end = simulate(
        engine, rules.strategy, PARTICIPATION["trace"](table), rounds=len(table), seed=s.file.seed,
        estimator=rules.estimator, server=rules.server,
    )  # fmt: skip
    return fingerprint(end.params)


def heard_all(s: settings.Settings) -> bool:
    """Whether every client was heard: a simulation with 1/p_i cannot replay a client that never came."""
    return bool(trace(read_metrics(s.state))[1].any(axis=0).all())


class Victims:
    """Finds the processes of a federation, and keeps its nodes alive."""

    def __init__(self, s: settings.Settings, rng: np.random.Generator) -> None:
        self.s, self.rng, self.down = s, rng, dict[int, float]()

    def kill(self, target: str) -> bool:
        """Kill one process of this kind, if there is one now."""
        names = [f"client-{k}" for k in range(CLIENTS)]
        link = launcher.pid_of(self.s, "link")
        found = {
            "server": _called(self.s, "link", "flwr-serverapp"),
            "link": [link] if link else [],
            "node": [pid for name in names if (pid := launcher.pid_of(self.s, name))],
            "client app": [p for name in names for p in _called(self.s, name, "flwr-clientapp")],
        }[target]
        if not found:
            return False
        pid = found[int(self.rng.integers(len(found)))]
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            return False
        time.sleep(0.2)
        launcher.reap(pid)
        return True

    def revive(self) -> None:
        """Start nodes that are gone, ten seconds later."""
        for k in range(CLIENTS):
            if launcher.pid_of(self.s, f"client-{k}"):
                self.down.pop(k, None)
            elif time.monotonic() > self.down.setdefault(k, time.monotonic() + 10.0):
                launcher.stop(self.s, f"client-{k}", patience=0.0)
                launcher.start_node(self.s, k)
                self.down.pop(k)


def _called(s: settings.Settings, name: str, program: str) -> list[int]:
    """The processes that NAME started which run this program."""
    found = []
    for p in launcher.family(s, name):
        with suppress(OSError):
            if program in Path(f"/proc/{p}/cmdline").read_text():
                found.append(p)
    return found


def chaos(folder: Path, kills: int, seed: int, out: TextIO, pause: float = 6.0) -> dict[str, Any]:
    """So many kills and the rounds after them; raises if anything that must hold does not."""
    rng, began = np.random.default_rng(seed), time.monotonic()
    s = prepare(folder, rounds=10**6)
    victims, failure, table = Victims(s, rng), list[BaseException](), csv.writer(out, lineterminator="\n")
    table.writerow(["kill", "seconds", "target", "committed"])

    def play() -> None:
        try:
            for _ in runner.run(s, tries=20):
                pass
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        done, t, changed, longest, next_kill = 0, 0, time.monotonic(), 0.0, time.monotonic() + 20.0
        end, burst = None, 0
        while end is None or t < end or not heard_all(s):
            time.sleep(0.5)
            require(not failure, f"the run gave up: {failure}")
            victims.revive()
            now = committed_round(s.state)
            require(now >= t, f"round {t} was committed and is lost: {now}")
            if now > t:
                t, longest, changed, burst = now, max(longest, time.monotonic() - changed), time.monotonic(), 0
            stuck = time.monotonic() - changed
            require(stuck < DEADLINE + RESTART, f"no round for {stuck:.0f} s after kill {done}")
            if done < kills and burst < BURST and time.monotonic() > next_kill:
                target = TARGETS[int(rng.integers(len(TARGETS)))]
                if victims.kill(target):
                    done, burst = done + 1, burst + 1
                    table.writerow([done, round(time.monotonic() - began, 1), target, t])
                    out.flush()
                    changed = time.monotonic()
                    next_kill = time.monotonic() + rng.uniform(0.2, 2 * pause)
            if done == kills and end is None:
                end = t + 3  # and it goes on
    finally:
        launcher.stop(s, *launcher.names(s), patience=2.0, hard=True)
    lines = read_metrics(s.state)
    require([line["round"] for line in lines] == list(range(1, len(lines) + 1)), "a round is missing")
    same = lines[-1]["fingerprint"] == replayed(s)
    require(same, "the end is not that of the undisturbed run with the same participation")
    return {
        "seed": seed, "kills": done, "rounds": len(lines), "voids": lines[-1]["voids"],
        "longest wait for a round (s)": round(longest, 1), "seconds": round(time.monotonic() - began),
        "fingerprint": lines[-1]["fingerprint"], "equal to the undisturbed run": same,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--pause", type=float, default=6.0, help="mean seconds between kills")
    parser.add_argument("--out", type=Path, help="write the kills here, as CSV")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = chosen.out.open("w") if chosen.out else sys.stdout
        found = chaos(Path(folder) / "federation", chosen.kills, chosen.seed, out, chosen.pause)
    for key, value in found.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()

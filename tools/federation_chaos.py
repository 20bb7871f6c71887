"""Kill -9 at random moments, again and again: `python -m tools.federation_chaos --kills 100`.

A federation on the loopback, with TLS and keys, trains while its processes are killed: the server's app, its
executor, the link, the clients, the keeper that starts everything again, and `fedstale federation run` itself.
Nothing outside the federation helps. What must hold: every committed round stays committed, the next round comes at
most a minute after the last kill, and the end is that of a simulation, never disturbed, with the participation that
was recorded.

`--everything 5` kills all processes at once, so often, and has an operator type `fedstale federation up` each time.
"""

import argparse
import csv
import os
import secrets
import sqlite3
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fedstale.cli import federation as cli
from fedstale.cli.new import template
from fedstale.core import require
from fedstale.engines import Serial
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import launcher, processes
from fedstale.flower.federation.server.diagnostics import trace
from fedstale.flower.federation.state.manifest import committed_round, read_metrics
from fedstale.lab.runs.store import fingerprint
from fedstale.registry import PARTICIPATION
from fedstale.simulate import simulate
from fedstale.tasks.quadratic import Quadratic

CLIENTS, DEADLINE = 3, 30.0
PATIENT = 600.0  # seconds for what is only waited for, on a machine that does other things too
OUTAGE = 60.0  # seconds from the last kill to the next committed round, at most
BURST = 4  # kills at most from one committed round to the next: something must be there to be lost
TARGETS = ("server", "link", "executor", "client", "keeper", "run")
TASK = "from fedstale.tasks.quadratic import Quadratic\n\ntask = Quadratic.random(3, 40, seed=3, noise=0.2)\n"
PROJECT = (template("federation-app") / "pyproject.toml.txt").read_text().replace("{name}", "chaos")
APP = {
    "pyproject.toml": PROJECT.replace("learning.server:app", "chaos.apps:server").replace(
        "learning.client:app", "chaos.apps:client"
    ),
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


def write_app(folder: Path) -> None:
    """Write the Flower app that trains quadratics."""
    for path, text in APP.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def prepare(
    folder: Path, rounds: int, tls: bool = True, isolated: bool = False, deadline: float = DEADLINE
) -> settings.Settings:
    """A federation of quadratics that is up, with all clients online."""
    write_app(folder / "app")
    cli.init(
        folder, clients=CLIENTS, rounds=rounds, deadline=deadline, port=launcher.free_port(), app=folder / "app",
        tls=tls,
    )  # fmt: skip
    cli.up(folder)
    cli.join(folder, None, isolated=isolated)
    s, end = settings.read(folder), time.monotonic() + PATIENT
    while (there := online(s)) < CLIENTS:
        require(time.monotonic() < end, f"{there} of {CLIENTS} clients are online after {PATIENT:g} s")
        time.sleep(0.2)
    return s


def online(s: settings.Settings) -> int:
    """Clients that the link knows to be online."""
    with closing(sqlite3.connect(f"file:{s.folder / 'link.sqlite'}?mode=ro", uri=True)) as database:
        found: int = database.execute("SELECT COUNT(*) FROM node WHERE online_until > ?", [time.time()]).fetchone()[
            0
        ]
    return found


def replayed(s: settings.Settings) -> str:
    """The fingerprint of a simulation with the recorded participation."""
    clients, table = trace(read_metrics(s.state))
    known = [f"client-{i}" for i in range(CLIENTS)]
    require(clients == known, f"the trace must be of clients 0 to {CLIENTS - 1}, got {clients}")
    engine, rules = Serial(task(), s.local), s.rules
    *_, end = simulate(
        engine, rules.strategy, PARTICIPATION["trace"](table), rounds=len(table), seed=s.file.seed,
        estimator=rules.estimator, server=rules.server, defence=rules.defence,
    )  # fmt: skip
    return fingerprint(end.params)


def heard_all(s: settings.Settings) -> bool:
    """Whether every client was heard: a simulation with 1/p_i cannot replay a client that never came."""
    return bool(trace(read_metrics(s.state))[1].any(axis=0).all())


def victims(s: settings.Settings, target: str) -> list[int]:
    """The processes of this kind that are there now."""
    if target == "server":  # the app that the executor starts
        return [p for p in processes.family(s.folder, "link-executor") if "flwr-serverapp" in processes.command(p)]
    names = [name for name in processes.names(s.folder) if _kind(name) == target]
    return [pid for name in names if (pid := processes.pid_of(s.folder, name))]


def _kind(name: str) -> str:
    return "executor" if name.endswith(processes.EXECUTOR) else name.partition("-")[0]


def kill(s: settings.Settings, target: str, rng: np.random.Generator) -> bool:
    """Kill one process of this kind, if there is one now."""
    found = victims(s, target)
    if not found:
        return False
    try:
        os.kill(found[int(rng.integers(len(found)))], 9)
    except ProcessLookupError:
        return False
    return True


class Watch:
    """Looks at the committed rounds, and raises if one is lost or none comes."""

    def __init__(self, s: settings.Settings) -> None:
        self.s, self.t, self.kills, self.burst = s, 0, 0, 0
        self.changed = self.disturbed = time.monotonic()
        self.outage = self.gap = 0.0  # longest: from the last kill to a round, and from round to round

    def look(self) -> None:
        now, t = time.monotonic(), committed_round(self.s.state)
        require(t >= self.t, f"round {self.t} was committed and is lost: {t}")
        waited = now - max(self.changed, self.disturbed)
        require(waited < OUTAGE, f"no round for {waited:.0f} s after kill {self.kills}, round {self.t}")
        if t > self.t:
            self.outage, self.gap = max(self.outage, waited), max(self.gap, now - self.changed)
            self.t, self.changed, self.burst = t, now, 0

    def killed(self) -> None:
        self.kills, self.burst, self.disturbed = self.kills + 1, self.burst + 1, time.monotonic()


def chaos(folder: Path, kills: int, seed: int, out: TextIO, pause: float = 6.0) -> dict[str, Any]:
    """So many kills and the rounds after them; raises if anything that must hold does not."""
    rng, began, table = np.random.default_rng(seed), time.monotonic(), csv.writer(out, lineterminator="\n")
    s = prepare(folder, rounds=10**6)
    table.writerow(["kill", "seconds", "target", "committed"])
    try:
        launcher.start_run(s)
        watch, end, next_kill = Watch(s), None, time.monotonic() + 20.0
        while end is None or watch.t < end or not heard_all(s):
            time.sleep(0.25)
            watch.look()
            if watch.kills < kills and watch.burst < BURST and time.monotonic() > next_kill:
                target = TARGETS[int(rng.integers(len(TARGETS)))]
                if kill(s, target, rng):
                    watch.killed()
                    table.writerow([watch.kills, round(time.monotonic() - began, 1), target, watch.t])
                    out.flush()
                    next_kill = time.monotonic() + rng.uniform(0.2, 2 * pause)
            if watch.kills == kills and end is None:
                end = watch.t + 3  # and it goes on
    finally:
        launcher.stop_all(s, patience=2.0, hard=True)
    lines = read_metrics(s.state)
    require([line["round"] for line in lines] == list(range(1, len(lines) + 1)), "a round is missing")
    same = lines[-1]["fingerprint"] == replayed(s)
    require(same, "the end is not that of the undisturbed run with the same participation")
    heard = trace(lines)[1].mean(axis=0)
    return {
        "seed": seed, "kills": watch.kills, "rounds": len(lines), "voids": lines[-1]["voids"],
        "longest from the last kill to a round (s)": round(watch.outage, 1),
        "longest from round to round (s)": round(watch.gap, 1), "share of rounds heard": heard.round(2).tolist(),
        "seconds": round(time.monotonic() - began), "fingerprint": lines[-1]["fingerprint"],
        "equal to the undisturbed run": same,
    }  # fmt: skip


def everything(folder: Path, times: int) -> list[float]:
    """Kill all processes at once and start them with `up`; returns the seconds from there to the next round."""
    s, waited = prepare(folder, rounds=10**6), list[float]()
    try:
        launcher.start_run(s)
        for k in range(times):
            _until(s, committed_round(s.state) + 1 + k % 2)  # not always at the same moment
            time.sleep(0.7 * k)
            names = processes.names(s.folder)
            pids = {
                p for name in names for p in (processes.pid_of(s.folder, name), *processes.family(s.folder, name))
            }
            for pid in pids - {None}:
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)  # type: ignore[arg-type]
            t, began = committed_round(s.state), time.monotonic()
            cli.up(folder)
            _until(s, t + 1)
            waited.append(round(time.monotonic() - began, 1))
            print(f"{len(pids)} processes killed after round {t}; the next one {waited[-1]} s later", flush=True)
    finally:
        launcher.stop_all(s, patience=2.0, hard=True)
    return waited


def _until(s: settings.Settings, t: int) -> None:
    end = time.monotonic() + PATIENT
    while committed_round(s.state) < t:
        require(time.monotonic() < end, f"round {t} is not committed after {PATIENT:g} s; see {s.folder / 'logs'}")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--pause", type=float, default=6.0, help="mean seconds between kills")
    parser.add_argument("--out", type=Path, help="write the kills here, as CSV")
    parser.add_argument("--everything", type=int, metavar="TIMES", help="kill all processes at once instead")
    chosen = parser.parse_args()
    if chosen.everything:
        with tempfile.TemporaryDirectory() as folder:
            print(f"seconds: {everything(Path(folder) / 'federation', chosen.everything)}")
        return
    print(f"seed {chosen.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = chosen.out.open("w") if chosen.out else sys.stdout
        found = chaos(Path(folder) / "federation", chosen.kills, chosen.seed, out, chosen.pause)
    for key, value in found.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()

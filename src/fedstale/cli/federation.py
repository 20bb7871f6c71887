"""`fedstale federation …`: make, start, run, watch and stop a federation on Flower."""

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstale.cli import upkeep
from fedstale.cli.members import add, join, leave, need_flower, new_key, remove, rotate
from fedstale.cli.new import copy, template
from fedstale.cli.upkeep import Folder
from fedstale.core import require
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import control, launcher, processes, runner
from fedstale.flower.federation.ops.keeper import KEEPER
from fedstale.flower.federation.server import diagnostics
from fedstale.flower.federation.state import audit, roster
from fedstale.flower.federation.state.manifest import read_line, read_metrics
from fedstale.lab.runs.metrics import percent
from fedstale.lab.runs.query import SILENT, mute
from fedstale.lab.runs.store import RunFolder
from fedstale.view.terminal.console import AsFormat, Format, print_json, print_table, say
from fedstale.view.terminal.runs import Log
from fedstale.view.trackers.follow import following

TOO_FEW = 5  # exit status of `run`: trained, but too little of the objective was heard
app = typer.Typer(
    no_args_is_help=True, help="Train with real clients over Flower: init, up, join, run, status, down."
)


@app.command()
def init(
    folder: Folder,
    clients: Annotated[int, typer.Option(min=1, help="Clients in the first roster.")] = 6,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to train.")] = 100,
    strategy: Annotated[str, typer.Option(help="Algorithm: a name, or an inline table in TOML.")] = "auto",
    deadline: Annotated[float, typer.Option(help="Seconds that a round waits for updates.")] = 120.0,
    host: Annotated[str, typer.Option(help="Address that the link listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the link.")] = 9100,
    names: Annotated[str, typer.Option(help="Further names of the host, for its certificate: a.org,b.org")] = "",
    app: Annotated[Path | None, typer.Option(help="Your Flower app; a small one is written if left out.")] = None,
    tls: Annotated[bool, typer.Option("--tls/--insecure", help="Encryption and proof of identity.")] = True,
) -> None:
    """Create a federation: federation.toml, roster, certificate authority and client keys."""
    require(not (folder / "federation.toml").exists(), f"{folder} is a federation already")
    name = re.sub(r"[^\w.-]+", "-", folder.resolve().name)
    where = "app" if app is None else os.path.relpath(app.resolve(), folder.resolve())
    text = written({"name": name, "app": where, "host": host, "tls": tls}, strategy, rounds, deadline, port)
    hosts = [host, *_host_names(names)]
    known = app is None or (app / "pyproject.toml").is_file()
    require(known, f"--app must be the folder of a Flower app, with a pyproject.toml, got {app}")
    settings.parse(folder, text)  # a mistake is an error before anything is written
    _warn_of_strangers(host, tls)
    need_flower()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_roster(folder, clients, hosts if tls else [])
    if app is None:
        copy(template("federation-app"), folder / "app", app_name(name))
    (folder / "federation.toml").write_text(text)
    print(f"{folder}: {clients} clients; next: fedstale federation up {folder}")


def app_name(name: str) -> str:
    """A name that Flower takes for an app: letters, digits and hyphens, a letter first, at most 32 of them."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
    return (plain if plain[:1].isalpha() else f"app-{plain}")[:32].rstrip("-")


def written(words: dict[str, Any], strategy: str, rounds: int, deadline: float, port: int) -> str:
    """The text of a federation.toml; `strategy` is a name, or an inline table in TOML."""
    told = {key: json.dumps(value) for key, value in words.items()}
    told["strategy"] = strategy if strategy.startswith("{") else json.dumps(strategy)
    text: str = (template("federation") / "federation.toml.txt").read_text()
    return text.format(**told, rounds=rounds, deadline=deadline, port=port)


@app.command()
def up(
    folder: Folder,
    foreground: Annotated[bool, typer.Option(help="Stay until SIGTERM, then stop the link: for systemd.")] = False,
) -> None:
    """Start the SuperLink, which is started again if it ends, and register the clients' keys with it.

    If it runs already, whatever else of this folder has ended and is wanted is started: clients, training, keeper.
    """
    need_flower()
    s = settings.read(folder)
    revived = launcher.revive_all(s)
    pid = processes.pid_of(s.folder, "link") or launcher.start_link(s)
    control.wait_until_ready(s, pid)
    new = control.register(s)
    audit.note(folder, "up", {"pid": pid})
    for name in revived:
        print(f"{name} had ended and is started again")
    print(f"link on {s.file.link.host}:{s.file.link.port} (pid {pid}), {new} keys registered", flush=True)
    if foreground:
        launcher.stay(s, "link")


@app.command()
def run(
    folder: Folder,
    detach: Annotated[bool, typer.Option(help="In the background, and again after a crash.")] = False,
    log: Log = None,
) -> None:
    """Train until the last round is committed; after a crash, training goes on from the last committed round."""
    s = settings.read(folder)
    require(not (detach and log), "--log needs a run in the foreground; leave --detach out")
    if detach:
        print(f"run (pid {launcher.start_run(s)}); its output: {folder / 'logs' / 'run.log'}")
        return
    with following([RunFolder(s.state)], log or [], folder / "logs"):
        for event in runner.run(s):
            heard = diagnostics.in_words(read_line(s.state, event.t)) if event.kind == "round" else ""
            print(f"{event.kind} {event.t}/{s.file.rounds} {event.text}{heard}".rstrip(), flush=True)
    lines = read_metrics(s.state)
    diagnostics.write_trace(folder / "trace.csv", *diagnostics.trace(lines))
    print(f"fingerprint {lines[-1]['fingerprint']}; trace: {folder / 'trace.csv'}")
    if processes.pid_of(s.folder, "run") == os.getpid():
        processes.forget(s.folder, "run")  # done: the keeper need not start it again
    share, enough = diagnostics.heard_weight(lines), s.file.round.enough_weight
    if share < enough:
        heard = f"the last rounds heard {percent(share, 0)} of the objective's weight"
        say(f"fedstale: {heard}, enough_weight is {percent(enough, 0)}")
        raise typer.Exit(TOO_FEW)


@app.command()
def status(folder: Folder, format: AsFormat = Format.text) -> None:
    """Show who takes part, how stale each client is, and which processes of this folder are alive."""
    s = settings.read(folder)
    if lines := read_metrics(s.state):
        diagnostics.write_trace(folder / "trace.csv", *diagnostics.trace(lines))
    now = diagnostics.read_status(folder / "status.json", len(lines))
    now["processes"] = {name: processes.pid_of(s.folder, name) for name in processes.names(s.folder)}
    now["server"], now["mute"] = runner.alive(s), mute(lines)
    now["expires"] = expiries(s)
    kept = [name for name in now["processes"] if name != KEEPER and processes.wanted(s.folder, name)]
    now["kept"] = not kept or now["processes"].get(KEEPER) is not None
    if format == Format.json:
        print_json(now)
        return
    print(f"round {now['round']} of {s.file.rounds}, server {'running' if now['server'] else 'not running'}")
    if lines:
        print(f"round {lines[-1]['round']} {diagnostics.in_words(lines[-1])}")
    if found := diagnostics.evaluation(lines):
        print(diagnostics.scores_in_words(found))
    gone = f"{folder / 'status.json'} is missing; the next round writes it"
    print_table(now["clients"], empty=gone if lines else "no round yet")
    for name in (name for name in kept if now["processes"][name] is None):
        print(f"{name} has ended")
    if not now["kept"]:
        print(f"no keeper is running, so that nothing is started again: fedstale federation up {folder}")
    for name, until in now["expires"].items():
        print(f"{name} is valid until {until}")
    for client in now["mute"]:
        print(f"client {client} is mute: online, but without an answer in the last {SILENT} rounds that asked it")


@app.command()
def down(folder: Folder) -> None:
    """Stop every process that was started from this folder; the state stays."""
    s = settings.read(folder)
    for name, there in launcher.stop_all(s).items():
        print(f"{name} {'stopped' if there else 'was not running'}")


for _verb in (join, leave, add, remove, rotate, upkeep.backup, upkeep.restore, upkeep.export, upkeep.units):
    app.command()(_verb)


def expiries(s: settings.Settings) -> dict[str, str]:
    """The last day of the certificates that are on this machine."""
    files = [p for name in ("server.pem", "ca.pem") if (p := s.folder / "keys" / name).exists()]
    if not files:
        return {}
    from fedstale.flower.federation.ops.keys import expiry  # cryptography comes with Flower

    return {f"keys/{path.name}": f"{expiry(path):%Y-%m-%d}" for path in files}


def _warn_of_strangers(host: str, tls: bool) -> None:
    """Say what other machines can do with a link that listens beyond this one."""
    if host in ("localhost", "::1") or host.startswith("127."):
        return
    what = "they reach the clients' interface only; commands need keys/control.token, on this machine"
    if not tls:
        what = "without TLS they can read every update and join as any client; leave out --insecure"
    say(f"warning: {host} is an address for other machines: {what}", style="yellow")


def _host_names(given: str) -> list[str]:
    """The names in a list with commas."""
    found = [name for part in given.split(",") if (name := part.strip())]
    for name in found:
        require(settings.HOST.fullmatch(name) is not None, f"--names must be names of hosts, got {name!r}")
    return found


def _write_roster(folder: Path, clients: int, hosts: list[str]) -> None:
    """The first roster, with a key for each client; a certificate authority if there are hosts to certify."""
    if hosts:
        from fedstale.flower.federation.ops.keys import make_authority

        make_authority(folder / "keys", [*hosts, "localhost", "127.0.0.1"])
    members = roster.Roster(0, 0, ())
    for k in range(clients):
        members = members.joined(new_key(folder, k, None, members), f"client-{k}")
    roster.save(folder / "roster.json", members)

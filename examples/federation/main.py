"""A federation on one machine: a server and six real client processes, two of which come and go.

    python examples/federation/main.py [--rounds 6] [--insecure] [--folder DIR] [--engine serial]
    python examples/federation/main.py --replay examples/federation/trace.csv --engine ray

Afterwards the recorded participation is replayed in a simulation, which must end with the same bits. The
second command does only that, with the participation in a file and without Flower.
"""

import argparse
import importlib
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch

import fedstale as fs
from fedstale.cli import federation as cli
from fedstale.cli.members import join
from fedstale.engines import ENGINES
from fedstale.flower.federation import settings
from fedstale.flower.federation.ops import launcher, processes, runner
from fedstale.flower.federation.state.manifest import read_metrics
from fedstale.lab.runs.store import fingerprint

HERE = Path(__file__).parent
CLIENTS = 6
STRATEGY = '{ kind = "fedstale", beta = 0.5 }'


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # for the clients: torch's bits depend on the number of threads
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the clients are stopped, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--insecure", action="store_true", help="without TLS")
    parser.add_argument("--folder", type=Path, help="keep the federation here")
    parser.add_argument("--engine", choices=ENGINES, default="serial", help="of the simulation")
    parser.add_argument("--replay", type=Path, metavar="TRACE", help="simulate this participation, nothing else")
    chosen = parser.parse_args()
    if chosen.replay:
        replay(of(chosen.rounds), chosen.replay, chosen.engine)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary) / "federation"
        cli.init(
            folder, clients=CLIENTS, rounds=chosen.rounds, strategy=STRATEGY, deadline=60.0,
            port=launcher.free_port(), app=HERE / "app", tls=not chosen.insecure,
        )  # fmt: skip
        try:
            cli.up(folder)
            join(folder)
            follow(folder)
        finally:
            cli.down(folder)
        compare(folder, chosen.engine)


def follow(folder: Path) -> None:
    """Train; meanwhile client 4 is away in the second third, and client 5 from there on every other round."""
    s = settings.read(folder)
    for event in runner.run(s):
        print(f"{event.kind} {event.t}/{s.file.rounds} {event.text}".rstrip(), flush=True)
        if event.kind == "round" and event.t < s.file.rounds:
            third = s.file.rounds // 3
            come_and_go(s, 4, there=not third <= event.t < 2 * third)
            come_and_go(s, 5, there=event.t < third or event.t % 2 == 0)
    cli.status(folder)


def come_and_go(s: settings.Settings, client: int, there: bool) -> None:
    running = processes.pid_of(s.folder, f"client-{client}") is not None
    if there and not running:
        print(f"  client {client} comes back")
        launcher.start_client(s, client)
    if running and not there:
        print(f"  client {client} goes")
        processes.stop(s.folder, f"client-{client}")


def compare(folder: Path, engine: str) -> None:
    """The same rounds in a simulation with the recorded participation."""
    s = settings.read(folder)
    last = read_metrics(s.state)[-1]
    print((folder / "trace.csv").read_text().strip())
    print(f"federation {last['fingerprint']}")
    if last["fingerprint"] != replay(s, folder / "trace.csv", engine):
        raise fs.BadInput("the federation and the simulation differ")


def replay(s: settings.Settings, trace: Path, engine: str) -> str:
    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE / "app"))
    app, all_ = importlib.import_module("example.task"), range(CLIENTS)
    task = fs.Supervised(app.model, [app.samples(i) for i in all_], [app.samples(i, test=True) for i in all_])
    with ExitStack() as stack:
        made = fs.engine(engine, task, s.local)
        if isinstance(made, fs.core.Closes):
            stack.callback(made.close)
        *_, end = fs.simulate(
            made, s.rules.strategy, fs.Trace(trace), rounds=s.file.rounds, seed=s.file.seed,
            estimator=s.rules.estimator, server=s.rules.server, defence=s.rules.defence,
        )  # fmt: skip
    print(f"simulation {fingerprint(end.params)}")
    print(f"accuracy   {task.test_scores(end.params)['accuracy']:.3f}")
    return fingerprint(end.params)


def of(rounds: int) -> settings.Settings:
    """The settings of the federation that this example makes."""
    words = {"name": "f", "app": "app", "host": "127.0.0.1", "tls": False}
    return settings.parse(HERE, cli.written(words, STRATEGY, rounds, 60.0, 9100))


if __name__ == "__main__":
    main()

"""Seconds to a target accuracy in Flower, with half of the nodes ten times slower.

    python benchmarks/flower_async.py [--through simulation | link] [--target 0.9] [--fast 1] [--slow 10]
                                      [--limit 600] [--seeds 1] [--strategies 0 1 2 3]

The app is examples/flower-quickstart with all clients there all the time. Clients 5 to 9, which hold the digits 5
to 9, take ten times as long: they sleep before they train. Only the line that makes the strategy differs. Seconds
are those until two evaluations in a row are at the target.

With `--through simulation` it is Flower's `run_simulation`, which needs `pip install '.[flower,simulation]'`. With
`--through link` it is a SuperLink on loopback, and every node is a process of `fedstale federation join`, which
runs the same ClientApp: Flower's own SuperNode starts a process for every message, and on a small machine ten of
these take longer than what is measured.
"""

import argparse
import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[1].resolve() / "examples" / "flower-quickstart"
if EXAMPLE.exists():  # not in the app that is sent to the link, which has a copy
    HERE = str(Path(__file__).parent.resolve())
    os.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLE), HERE, os.environ.get("PYTHONPATH", "")])  # for Ray
    sys.path.insert(0, str(EXAMPLE))
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import torch  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from quickstart import client_app, server_app  # noqa: E402
from quickstart.task import Net  # noqa: E402

from fedstale.cli.new import template  # noqa: E402
from fedstale.flower import Buffer, FedStale  # noqa: E402

CLIENTS = 10
Points = list[tuple[float, float]]  # (seconds, accuracy) after every step
ALL: dict[str, Any] = {"fraction_evaluate": 0.0, "min_available_nodes": CLIENTS}
STRATEGIES: dict[str, Callable[[], Any]] = {
    "FedAvg()": lambda: FedAvg(**ALL),
    'FedStale("auto")': lambda: FedStale("auto", **ALL),
    'FedStale("auto", pace=Buffer(5, 10))': lambda: FedStale("auto", **ALL, pace=Buffer(5, 10)),
    'FedStale("fedbuff", pace=Buffer(5, 10))': lambda: FedStale("fedbuff", **ALL, pace=Buffer(5, 10)),
}
PROJECT = (
    (template("federation-app") / "pyproject.toml.txt").read_text().replace("{name}", "flower-async")
    .replace("learning.server:app", "flower_async:server").replace("learning.client:app", "flower_async:client")
    .replace("federation =", "settings =")
)  # fmt: skip


class Done(Exception):
    """The target is reached, or the time is up."""


client, server = ClientApp(), ServerApp()


def _numbered(context: Context) -> Context:
    """The context with the number of the partition: a client of `federation join` has its number in the roster."""
    number = context.node_config.get("client", context.node_config.get("partition-id"))
    context.node_config |= {"partition-id": number, "num-partitions": CLIENTS}
    return context


@client.train()
def train(message: Message, context: Context) -> Message:
    """The training of the example, after a sleep."""
    slow = int(_numbered(context).node_config["partition-id"]) >= CLIENTS // 2
    time.sleep(message.content["config"]["slow" if slow else "fast"])
    reply: Message = client_app.train(message, context)
    return reply


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    reply: Message = client_app.evaluate(message, _numbered(context))
    return reply


@server.main()
def main_on_link(grid: Grid, context: Context) -> None:
    """The server of a link: what to do, and the file for the outcome, are in its configuration."""
    s = json.loads(str(context.run_config["settings"]))
    file = Path(s["file"])
    file.with_suffix(".new").write_text(json.dumps(accuracies(grid, s)))
    file.with_suffix(".new").replace(file)


def accuracies(grid: Grid, s: dict[str, Any]) -> Points:
    """Train until the target was reached twice in a row."""
    found: Points = []
    while len([*grid.get_node_ids()]) < CLIENTS:
        time.sleep(0.2)
    warm_up(grid)
    torch.manual_seed(s["seed"])
    began = time.monotonic()

    def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord:
        scores = server_app.global_evaluate(arrays)
        found.append((time.monotonic() - began, float(scores["accuracy"])))
        if found[-1][0] > s["limit"] or all(a >= s["target"] for _, a in [(0, 0), *found][-2:]):
            raise Done
        return scores

    config = ConfigRecord({"lr": 0.05, "seed": s["seed"], "fast": s["fast"], "slow": s["slow"]})
    with contextlib.suppress(Done):
        strategy = STRATEGIES[s["strategy"]]()
        strategy.start(grid, ArrayRecord(Net().state_dict()), 10_000, train_config=config, evaluate_fn=evaluate)
    return found


def warm_up(grid: Grid) -> None:
    """Let every process of a client start and import torch before the time begins."""
    content = RecordDict({"arrays": ArrayRecord(Net().state_dict()), "config": ConfigRecord({"lr": 0.05})})
    for _ in range(2):
        asked = [Message(content, dst_node_id=node, message_type="evaluate") for node in grid.get_node_ids()]
        list(grid.send_and_receive(asked, timeout=600))


def simulated(s: dict[str, Any]) -> Points:
    """In Flower's simulation."""
    from flwr.simulation import run_simulation

    found, app = Points(), ServerApp()
    app.main()(lambda grid, context: found.extend(accuracies(grid, s)))
    each = {"client_resources": {"num_cpus": (os.cpu_count() or 1) / CLIENTS, "num_gpus": 0.0}}  # all at once
    run_simulation(app, client, num_supernodes=CLIENTS, backend_config=each)
    return found


@contextlib.contextmanager
def link(folder: Path) -> Iterator[Callable[[dict[str, Any]], Points]]:
    """A SuperLink with ten clients; gives a function that trains there."""
    from fedstale.cli import federation
    from fedstale.flower.federation import settings
    from fedstale.flower.federation.ops import control, launcher

    app = folder / "app"
    shutil.copytree(EXAMPLE / "quickstart", app / "quickstart")
    shutil.copy(__file__, app / "flower_async.py")
    (app / "pyproject.toml").write_text(PROJECT)
    federation.init(folder / "f", clients=CLIENTS, rounds=1, port=launcher.free_port(), app=app, tls=True)
    s = settings.read(folder / "f")

    def trained(chosen: dict[str, Any]) -> Points:
        file = folder / f"{chosen['seed']}-{chosen['strategy']}.json"
        number = control.submit(s, {"settings": json.dumps(chosen | {"file": str(file)})})
        while not file.exists() and control.run_state(s, number)[0] != "finished":
            time.sleep(1)
        return [(seconds, accuracy) for seconds, accuracy in json.loads(file.read_text())]

    try:
        launcher.start_link(s)
        control.wait_until_ready(s)
        control.register(s)
        for k in range(CLIENTS):
            launcher.start_client(s, k)
        yield trained
    finally:
        launcher.stop_all(s, patience=3.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--through", choices=("simulation", "link"), default="simulation")
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--fast", type=float, default=1.0, help="seconds that half of the clients take")
    parser.add_argument("--slow", type=float, default=10.0, help="seconds that the others take")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a training, at most")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--strategies", nargs="+", type=int, default=[*range(len(STRATEGIES))], help="by number")
    chosen = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        through = simulated if chosen.through == "simulation" else stack.enter_context(link(folder))
        for name, seed in ((n, s) for n in chosen.strategies for s in chosen.seeds):
            told = {key: getattr(chosen, key) for key in ("target", "fast", "slow", "limit")}
            label = [*STRATEGIES][name]
            found = through(told | {"strategy": label, "seed": seed})
            seconds, accuracy = found[-1]
            end = f"{seconds:.0f} s" if seconds <= chosen.limit else f"not in {chosen.limit:.0f} s"
            print(f"{label:42} seed {seed}: {end}, {len(found) - 1} steps, {100 * accuracy:.1f} %", flush=True)


if __name__ == "__main__":
    main()

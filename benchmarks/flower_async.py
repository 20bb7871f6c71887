"""Seconds to a target accuracy in Flower's own simulation, with half of the nodes ten times slower.

    python benchmarks/flower_async.py [--target 0.9] [--fast 1] [--slow 10] [--limit 600] [--seeds 1]

The app is examples/flower-quickstart with all clients there all the time. Clients 5 to 9, which hold the digits 5
to 9, take ten times as long: they sleep before they train. Only the line that makes the strategy differs. Seconds
are those until two evaluations in a row are at the target; it needs `pip install '.[flower,simulation]'`.
"""

import argparse
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

APP = Path(__file__).parents[1].resolve() / "examples" / "flower-quickstart"
HERE = str(Path(__file__).parent.resolve())
os.environ["PYTHONPATH"] = os.pathsep.join([str(APP), HERE, os.environ.get("PYTHONPATH", "")])  # of Ray's workers
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
sys.path.insert(0, str(APP))

import torch  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from quickstart import client_app, server_app  # noqa: E402
from quickstart.task import Net  # noqa: E402

from fedstale.flower import Buffer, FedStale  # noqa: E402

CLIENTS = 10
STRATEGIES: dict[str, Callable[[], Any]] = {
    "FedAvg()": lambda: FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS),
    'FedStale("auto")': lambda: FedStale("auto", fraction_evaluate=0.0, min_available_nodes=CLIENTS),
    'FedStale("auto", pace=Buffer(5, 10))': lambda: FedStale(
        "auto", fraction_evaluate=0.0, min_available_nodes=CLIENTS, pace=Buffer(5, 10)
    ),
    'FedStale("fedbuff", pace=Buffer(5, 10))': lambda: FedStale(
        "fedbuff", fraction_evaluate=0.0, min_available_nodes=CLIENTS, pace=Buffer(5, 10)
    ),
}


class Done(Exception):
    """The target is reached, or the time is up."""


def clients(fast: float, slow: float) -> ClientApp:
    """The clients of the example; the second half takes longer."""
    app = ClientApp()

    def train(message: Message, context: Context) -> Message:
        time.sleep(fast if int(context.node_config["partition-id"]) < CLIENTS // 2 else slow)
        reply: Message = client_app.train(message, context)
        return reply

    app.train()(train)
    app.evaluate()(client_app.evaluate)
    return app


def accuracies(make: Callable[[], Any], chosen: argparse.Namespace, seed: int) -> list[tuple[float, float]]:
    """(seconds, accuracy) after every step, until the target was reached twice in a row."""
    found: list[tuple[float, float]] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.manual_seed(seed)
        while len([*grid.get_node_ids()]) < CLIENTS:
            time.sleep(0.2)
        warm_up(grid, seed)
        began = time.monotonic()

        def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord:
            scores = server_app.global_evaluate(arrays)
            found.append((time.monotonic() - began, float(scores["accuracy"])))
            if found[-1][0] > chosen.limit or all(a >= chosen.target for _, a in [(0, 0), *found][-2:]):
                raise Done
            return scores

        config = ConfigRecord({"lr": 0.05, "seed": seed})
        with contextlib.suppress(Done):
            make().start(grid, ArrayRecord(Net().state_dict()), 10_000, train_config=config, evaluate_fn=evaluate)

    each = {"client_resources": {"num_cpus": os.cpu_count() / CLIENTS, "num_gpus": 0.0}}  # all are at work at once
    run_simulation(app, clients(chosen.fast, chosen.slow), num_supernodes=CLIENTS, backend_config=each)
    return found


def warm_up(grid: Grid, seed: int) -> None:
    """Let every process of the simulation start and import torch before the time begins."""
    torch.manual_seed(seed)
    content = RecordDict({"arrays": ArrayRecord(Net().state_dict()), "config": ConfigRecord({"lr": 0.05})})
    for _ in range(2):
        asked = [Message(content, dst_node_id=node, message_type="evaluate") for node in grid.get_node_ids()]
        list(grid.send_and_receive(asked, timeout=300))
    torch.manual_seed(seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--fast", type=float, default=1.0, help="seconds that half of the clients take")
    parser.add_argument("--slow", type=float, default=10.0, help="seconds that the others take")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a training, at most")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--strategies", nargs="+", type=int, default=[*range(len(STRATEGIES))], help="by number")
    chosen = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    for name, make in ([*STRATEGIES.items()][k] for k in chosen.strategies):
        for seed in chosen.seeds:
            found = accuracies(make, chosen, seed)
            seconds, accuracy = found[-1]
            end = f"{seconds:.0f} s" if seconds <= chosen.limit else f"not in {chosen.limit:.0f} s"
            print(f"{name:42} seed {seed}: {end}, {len(found) - 1} steps, {100 * accuracy:.1f} %", flush=True)


if __name__ == "__main__":
    main()

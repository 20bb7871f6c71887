"""Flower's FedAvg and fedstale's rules with clients that come and go, in Flower's own simulation.

    python examples/flower-quickstart/compare.py [--rules flower auto] [--seeds 1 2 3] [--rounds 60]

Prints the mean accuracy of the last ten rounds, on images of all ten digits, in per cent. It needs
`pip install '.[flower,simulation]'`, and about a minute for each training.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent.resolve()
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])  # of Ray's workers
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
sys.path.insert(0, str(HERE))

from flwr.serverapp import ServerApp  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from quickstart import client_app, server_app  # noqa: E402

CLIENTS, LAST = 10, 10


def accuracy(rule: str, rounds: int, seed: int) -> float:
    """The mean accuracy of the last rounds of one training."""
    scores: list[float] = []
    app = ServerApp()

    @app.main()
    def main(grid, context):
        result = server_app.train(grid, rule, rounds, seed, fraction_evaluate=0.0)
        scores.extend(float(result.evaluate_metrics_serverapp[t]["accuracy"]) for t in range(1, rounds + 1))

    one_each = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(app, client_app.app, num_supernodes=CLIENTS, backend_config=one_each)
    last = scores[-LAST:]
    return sum(last) / len(last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="+", default=["flower", "auto"], help='"flower" is Flower\'s FedAvg')
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=60)
    chosen = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    print(f"{'rule':16}", *(f"seed {seed:<5}" for seed in chosen.seeds), "mean")
    for rule in chosen.rules:
        found = [accuracy(rule, chosen.rounds, seed) for seed in chosen.seeds]
        print(
            f"{rule:16}", *(f"{100 * x:<10.1f}" for x in found), f"{100 * sum(found) / len(found):.1f}", flush=True
        )


if __name__ == "__main__":
    main()

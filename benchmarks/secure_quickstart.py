"""The quickstart with and without secure aggregation: accuracy, and time per round as a ratio.

    python benchmarks/secure_quickstart.py [--seeds 1 2 3 4 5] [--rounds 60] [--most 1000]

The app of examples/flower-quickstart, whose server and ten clients run in this process and exchange Flower's
messages: `FedStale("auto")`, and the same with `secure=SecAgg()` and `mods=[SecureMod("auto")]`. Both are trained
in turn for every seed. Accuracy is the mean of the last ten rounds, on images of all ten digits; time is CPU time
of the server and all clients, without a network. It needs `pip install '.[flower]'`.
"""

import argparse
import logging
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "flower-quickstart")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message  # noqa: E402
from quickstart import client_app, server_app, task  # noqa: E402

from fedstale.flower import FedStale, SecAgg, SecureMod  # noqa: E402
from tests.flower.direct import Direct, away  # noqa: E402

CLIENTS, LAST = 10, 10


def trained(seed: int, rounds: int, secure: SecAgg | None) -> tuple[float, float]:
    """The mean accuracy of the last rounds, and CPU seconds per round."""
    mod, scores = SecureMod("auto"), list[float]()

    def clear(message: Message, context: Context) -> Message:
        return client_app.app(message, context)

    def answer(message: Message, context: Context) -> Message:
        try:
            return mod(message, context, clear) if secure else clear(message, context)
        except ValueError as reason:  # in a deployment Flower sends the error
            return away(message, str(reason))

    def evaluate(t: int, arrays: ArrayRecord) -> Any:
        began = time.process_time()
        found = server_app.global_evaluate(arrays)
        scores.append(float(found["accuracy"]))
        spent[0] += time.process_time() - began
        return found

    spent = [0.0]
    torch.manual_seed(seed)
    strategy = FedStale("auto", fraction_evaluate=0.0, secure=secure)
    start, config = ArrayRecord(task.Net().state_dict()), ConfigRecord({"lr": 0.05, "seed": seed})
    began = time.process_time()
    strategy.start(Direct(CLIENTS, answer), start, rounds, train_config=config, evaluate_fn=evaluate)
    return float(np.mean(scores[-LAST:])), (time.process_time() - began - spent[0]) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--most", type=int, default=SecAgg().most, help="fewer clients are rounded more finely")
    asked = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    found = []
    for seed in asked.seeds:
        (plain, fast), (secure, slow) = (
            trained(seed, asked.rounds, kind) for kind in (None, SecAgg(most=asked.most))
        )
        found.append((100 * (secure - plain), slow / fast))
        told = f"accuracy {100 * plain:.2f} and {100 * secure:.2f}, CPU seconds a round {fast:.3f} and {slow:.3f}"
        print(f"seed {seed}: without and with secure aggregation: {told}", flush=True)
    gaps, ratios = np.array(found).T
    print(f"difference in points {gaps.mean():+.2f} ({gaps.min():+.2f} to {gaps.max():+.2f})")
    print(f"time per round as a ratio {ratios.mean():.2f} ({ratios.min():.2f} to {ratios.max():.2f})")


if __name__ == "__main__":
    main()

"""The server, as in any Flower app, but for the line that makes the strategy and for saving its state."""

import os
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from fedstale.flower import FedStale
from quickstart.task import Net, samples, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    c = context.run_config
    train(grid, c["rule"], c["num-server-rounds"], c["seed"], lr=c["learning-rate"], state=c["state"])


def train(
    grid: Grid, rule: str, rounds: int, seed: int, lr: float = 0.05, fraction_evaluate: float = 1.0, state: str = ""
) -> Result:
    if rule == "flower":
        strategy = FedAvg(fraction_evaluate=fraction_evaluate)
    else:
        strategy = FedStale(rule, fraction_evaluate=fraction_evaluate)
    torch.manual_seed(seed)
    arrays = ArrayRecord(Net().state_dict())
    if state and Path(state).exists():
        strategy.load_state_dict(np.load(state))
        arrays = strategy.arrays

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if state and server_round > 0:
            np.savez(f"{state}.new.npz", **strategy.state_dict())
            os.replace(f"{state}.new.npz", state)  # at once: a crash leaves the state of the round before
        return global_evaluate(arrays)

    return strategy.start(
        grid, initial_arrays=arrays, num_rounds=rounds, train_config=ConfigRecord({"lr": lr, "seed": seed}),
        evaluate_fn=evaluate,
    )  # fmt: skip


def global_evaluate(arrays: ArrayRecord) -> MetricRecord:
    """Loss and accuracy on images of all ten digits that no client holds."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, *samples(test=True))
    return MetricRecord({"loss": loss, "accuracy": accuracy})

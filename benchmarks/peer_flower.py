"""A round in Flower's simulation for every line on standard input; run by `fedstale bench --against flower`."""

import os
import sys
import time
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workloads import WORKLOADS, plain, samples, trained

workload = WORKLOADS[sys.argv[1]]
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    x, y = samples(workload)[int(context.node_config["partition-id"])]
    model = plain(workload)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    trained(model, x, y, workload)
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """Waits for a line before a round and says afterwards how long it took."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if not sys.stdin.readline():
            os._exit(0)
        self.start = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        failed = [reply.error for reply in replies if reply.has_error()]
        if failed or len(replies) != workload.clients:
            print(f"{len(replies)} of {workload.clients} replied, {failed[:1]}", file=sys.stderr, flush=True)
            os._exit(1)
        aggregated = super().aggregate_train(server_round, replies)
        print("seconds", time.perf_counter() - self.start, flush=True)
        return aggregated


@server.main()
def main(grid: Grid, context: Context) -> None:
    everybody = workload.clients
    strategy = Timed(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=everybody, min_available_nodes=everybody
    )
    strategy.start(grid=grid, initial_arrays=ArrayRecord(plain(workload).state_dict()), num_rounds=10**6)


if __name__ == "__main__":
    cores = len(os.sched_getaffinity(0))
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": cores}}
    torch.manual_seed(0)
    run_simulation(server, client, num_supernodes=workload.clients, backend_config=backend)

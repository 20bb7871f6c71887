"""The example's app in Flower's own simulation; prints what came of it as JSON. Run by test_simulation.py."""

import json
import os
import time

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from quickstart import client_app, task

from fedstale.flower import FedStale

CLIENTS, ROUNDS, TRIES, WAITS = 4, 3, 10, 300
NOT_STARTED = "the clients do not start"
app = ServerApp()


def everybody_answers(grid: Grid, content: RecordDict) -> bool:
    """Whether all clients evaluate a model: on a busy machine their processes may fail to start, or start late."""
    for _ in range(WAITS):  # they sign in beside the ServerApp, before it or after
        if len(nodes := [*grid.get_node_ids()]) == CLIENTS:
            break
        time.sleep(0.1)
    asked = [Message(content, dst_node_id=node, message_type="evaluate") for node in nodes]
    replies = [*grid.send_and_receive(asked, timeout=120)]
    for reply in replies:
        if reply.has_error():
            print(f"a client fails: {reply.error.reason}", flush=True)
    return sum(not reply.has_error() for reply in replies) == CLIENTS


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedStale("auto", min_available_nodes=CLIENTS)
    arrays, config = ArrayRecord(task.Net().state_dict()), ConfigRecord({"lr": 0.05, "seed": 1})
    content = RecordDict({"arrays": arrays, "config": config})
    if not any(everybody_answers(grid, content) for _ in range(TRIES)):
        print(NOT_STARTED, flush=True)
        os._exit(1)  # the threads of a Ray that crashed may never end
    result = strategy.start(grid, arrays, num_rounds=ROUNDS, train_config=config)
    population = strategy._training.population
    found = {
        "train": {t: m["train_loss"] for t, m in result.train_metrics_clientapp.items()},
        "evaluate": {t: m["eval_acc"] for t, m in result.evaluate_metrics_clientapp.items()},
        "weights": dict(zip(population.names, population.clients.weights.tolist(), strict=True)),
        "sizes": [len(task.load_data(k, CLIENTS)) for k in range(CLIENTS)],
    }
    print(f"found {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    run_simulation(app, client_app.app, CLIENTS, backend_config={"client_resources": {"num_cpus": 1}})

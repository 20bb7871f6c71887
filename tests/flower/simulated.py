"""The example's app in Flower's own simulation; prints what came of it as JSON. Run by test_simulation.py."""

import json

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from quickstart import client_app, task

from fedstale.flower import FedStale

CLIENTS, ROUNDS = 4, 3
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedStale("auto", min_available_nodes=CLIENTS)
    arrays, config = ArrayRecord(task.Net().state_dict()), ConfigRecord({"lr": 0.05, "seed": 1})
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

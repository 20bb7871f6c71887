"""A round of FedJAX's federated averaging for every line on standard input: `fedstale bench --against fedjax`."""

import sys
import time

import fedjax
import jax
import numpy as np
from fedjax.algorithms import fed_avg
from jax_models import loss, model
from workloads import LR, WORKLOADS, samples

workload = WORKLOADS[sys.argv[1]]


def main() -> None:
    jax.tree_map = jax.tree.map  # its old name, by which FedJAX calls it
    params, scores = model(workload)
    gradient = jax.grad(lambda p, batch, rng: loss(scores(p, batch["x"]), batch["y"]))
    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=workload.batch, num_steps=workload.steps, num_epochs=None)
    algorithm = fed_avg.federated_averaging(
        gradient, fedjax.optimizers.sgd(LR), fedjax.optimizers.sgd(1.0), batches
    )
    clients = [
        (str(k), fedjax.ClientDataset({"x": x.numpy(), "y": y.numpy().astype(np.int32)}))
        for k, (x, y) in enumerate(samples(workload))
    ]
    state, rng = algorithm.init(params), jax.random.PRNGKey(0)
    for _ in sys.stdin:
        begin = time.perf_counter()
        rng, *each = jax.random.split(rng, len(clients) + 1)
        state, _ = algorithm.apply(state, [(*client, own) for client, own in zip(clients, each, strict=True)])
        jax.block_until_ready(state.params)
        print("seconds", time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main()

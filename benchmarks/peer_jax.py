"""A round in JAX, written by hand, for every line on standard input; run by `fedstale bench --against jax`.

All clients of all runs are one compiled program: a scan over the local steps of a client, for all clients at once
(vmap) or, where that is faster, for one after the other (map).
"""

import sys
import time
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax_models import loss, model
from workloads import LR, WORKLOADS, samples

workload = WORKLOADS[sys.argv[1]]
ONE_BY_ONE = {"mlp", "cnn", "gru", "gru-15", "lstm", "transformer", "lora"}  # where vmap was slower


def main() -> None:
    start, scores = model(workload)
    x, y = (jnp.asarray(np.stack([part[k].numpy() for part in samples(workload)])) for k in (0, 1))
    clients, held, rng = workload.clients, workload.samples, np.random.default_rng(0)
    wanted = workload.steps * workload.batch
    many = np.broadcast_to(np.arange(held), (workload.seeds * clients, held))
    runs = {name: jnp.stack([p + 1e-3 * k for k in range(workload.betas)]) for name, p in start.items()}

    def trained(params: Any, x: Any, y: Any, batches: Any) -> Any:
        def step(params: Any, batch: Any) -> tuple[Any, None]:
            gradient = jax.grad(lambda p: loss(scores(p, x[batch]), y[batch]))(params)
            return jax.tree.map(lambda p, g: p - LR * g, params, gradient), None

        after, _ = lax.scan(step, params, batches)
        return jax.tree.map(jnp.subtract, after, params)

    @jax.jit
    def play(runs: Any, x: Any, y: Any, batches: Any) -> Any:
        def of_run(params: Any, batches: Any) -> Any:
            if sys.argv[1] in ONE_BY_ONE:
                return lax.map(lambda one: trained(params, *one), (x, y, batches))
            return jax.vmap(partial(trained, params))(x, y, batches)

        if workload.runs == 1:
            return of_run({name: p[0] for name, p in runs.items()}, batches[0])
        return jax.vmap(lambda b: jax.vmap(lambda p: of_run(p, b))(runs))(batches)

    for _ in sys.stdin:
        begin = time.perf_counter()
        order = [rng.permuted(many, axis=1) for _ in range(-(-wanted // held))]
        batches = np.concatenate(order, 1)[:, :wanted].reshape(-1, clients, workload.steps, workload.batch)
        jax.block_until_ready(play(runs, x, y, batches.astype(np.int32)))
        print("seconds", time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main()

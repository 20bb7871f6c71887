"""What evaluation costs beside training: `python benchmarks/evaluation.py`.

A fifth of MNIST's size among 24 clients, as in FedStale's figures: 12,000 training and 2,000 test samples, 13
clients a round, five steps on batches of 128. Best of several; with fifty evaluations a run, and
the last ten rounds.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from workloads import CONVOLUTIONS, DENSE, LINEAR

from fedstale.core import Job
from fedstale.engines import make
from fedstale.tasks.supervised import Supervised

ROUNDS = (100, 1000, 10_000)


def best(play: Callable[[], object], turns: int) -> float:
    play()
    took = []
    for _ in range(turns):
        start = time.perf_counter()
        play()
        took.append(time.perf_counter() - start)
    return min(took)


def main() -> None:
    x, y = torch.randn(24, 584, 1, 28, 28), torch.randint(0, 10, (24, 584))
    clients = [(x[i, :500], y[i, :500]) for i in range(24)]
    print(f"{'':24}{'training':>12}{'evaluation':>12}   share of training in a run of {ROUNDS} rounds")
    for w in (LINEAR, DENSE, CONVOLUTIONS):
        task = Supervised(
            partial(w.model.build, w.shape, w.classes), clients, [(x[i, 500:], y[i, 500:]) for i in range(24)]
        )
        engine, params = make(w.engine, task, w.local), task.init(0)
        turns = 5 if w is CONVOLUTIONS else 30
        training = best(partial(engine.train, [Job(params, np.arange(13), 0, 1, w.local)]), turns)
        evaluation = best(partial(task.evaluate, params), turns)
        getattr(engine, "close", lambda: None)()
        shares = (f"{60 * evaluation / (t * training):.1%}" for t in ROUNDS)
        print(f"{w.about:24}{1e3 * training:9.1f} ms{1e3 * evaluation:9.1f} ms   {', '.join(shares)}", flush=True)


if __name__ == "__main__":
    main()

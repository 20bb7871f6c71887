"""What a round costs besides training and evaluation: `python benchmarks/overhead.py`.

An engine that trains nothing, everything else as in a run. Milliseconds a round, best of five blocks.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedstale.core import Array, Job, Local, Reply
from fedstale.participation.bernoulli import Bernoulli
from fedstale.participation.estimators import Intervals, Known
from fedstale.participation.sampling import Sampling
from fedstale.simulate import simulate
from fedstale.strategies.fedavg import FedAvg
from fedstale.strategies.fedstale import FedStale
from fedstale.strategies.self_tuning import SelfTuning
from fedstale.strategies.unbiased import Unbiased


class Nothing:
    """A task and an engine in one: n clients, d parameters, no data."""

    def __init__(self, n: int, d: int) -> None:
        self.n, self.d, self.local, self.task = n, d, Local(0.1), self
        self.weights = np.full(n, 1 / n, np.float32)
        self.updates = np.full((min(n, 1000), d), 1e-3, np.float32)

    def init(self, seed: int) -> Array:
        return np.zeros(self.d, np.float32)

    def train(self, jobs: Sequence[Job]) -> list[Reply]:
        return [Reply(self.updates[: len(j.clients)], np.ones(len(j.clients), np.float32)) for j in jobs]

    def losses(self, job: Job) -> Array:
        return np.ones(len(job.clients), np.float32)

    def batches(self, *_: Any) -> Any:
        raise NotImplementedError  # nothing is drawn

    def gradient(self, *_: Any) -> Any:
        raise NotImplementedError

    def evaluate(self, params: Array) -> dict[str, float]:
        return {}


def milliseconds(
    n: int, heard: int, d: int, strategy: object, estimator: object, rounds: int, sampled: bool = False
) -> float:
    """`heard` of n clients in the mean, each by a coin; `sampled` draws so many, and nobody looks at the others."""
    who = Sampling(Bernoulli(1.0), heard) if sampled else Bernoulli(heard / n)
    run = simulate(
        Nothing(n, d), strategy, who, rounds=6 * rounds, estimator=estimator  # type: ignore[arg-type]
    )  # fmt: skip
    for _ in itertools.islice(run, rounds):
        pass
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in itertools.islice(run, rounds):
            pass
        best = min(best, (time.process_time() - start) / rounds)
    return 1000 * best


SIZES = [(24, 13, 10, 200), (24, 13, 7850, 200), (10**6, 100, 10, 10), (10**6, 100, 7850, 5)]
RULES = [(FedAvg(), Known()), (Unbiased(), Known()), (FedStale(0.5), Known()), (FedStale(0.5), Intervals())]


def main() -> None:
    print(f"{'clients':>9} {'heard':>5} {'d':>7}  ms a round")
    for (n, heard, d, rounds), rule in itertools.product(SIZES, RULES):
        ms = milliseconds(n, heard, d, *rule, rounds)
        told = ", ".join(type(part).__name__ for part in rule)
        print(f"{n:>9} {heard:>5} {d:>7} {ms:>11.3f}  {told}", flush=True)
    print("100 clients sampled, d = 1000: a million clients beside a thousand")
    for rule in (FedAvg(), FedStale(0.5), SelfTuning()):
        few, many = (milliseconds(n, 100, 1000, rule, Known(), 40, sampled=True) for n in (10**3, 10**6))
        print(f"{few:>11.3f} {many:>11.3f} ms, {many / few:.2f} times  {type(rule).__name__}", flush=True)


if __name__ == "__main__":
    main()

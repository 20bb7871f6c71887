"""What an asynchronous round costs beside a synchronous one: `python benchmarks/asynchronous_round.py`.

A linear model and an MLP on generated vectors, batched engine, ten updates in every round. In the synchronous
run all clients start from the same parameters; in the asynchronous one from those that they were sent, which
differ. Processor time of a round, the least of seven blocks of both by turns; the timeline is computed in it.
The ratio may be 1.3 at most.

Then a million clients, 1,000 of them at work and 100 updates in every step: the timeline of 1,000 steps, beside the
training of the linear model that it is for, of which 20 steps are measured.
"""

import itertools
import time
from collections.abc import Iterator

import numpy as np

import fedstale as fs
from fedstale.lab.build import make_task
from fedstale.lab.schema import check
from fedstale.participation.clock import Buffer, Clock, Constant, Load, Lognormal, Rounds

BLOCK, BLOCKS, M = 30, 7, 10


def task(model: object) -> fs.core.Task:
    """100 clients with vectors of 60 numbers."""
    raw = {
        "name": "cost", "rounds": 1, "algorithms": ["fedavg"], "local": {"lr": 0.05},
        "data": {"dataset": "synthetic", "clients": 100, "max_samples": 200}, "model": model,
    }  # fmt: skip
    e = check(raw | {"participation": {"kind": "bernoulli", "p": 1.0}})
    return make_task(e.data, e.model.model_dump())


def rounds(engine: fs.core.Engine, clock: Clock) -> Iterator[fs.core.Snapshot]:
    """An endless run of FedAvg."""
    return fs.simulate(
        engine, fs.FedAvg(), fs.Bernoulli(1.0), rounds=10**6, seed=1, clock=clock, estimator=fs.Intervals()
    )


def block(run: Iterator[fs.core.Snapshot]) -> tuple[float, int]:
    """Seconds of a round, and how many updates were used in it on average."""
    start, heard = time.process_time(), [len(s.clients) for s in itertools.islice(run, BLOCK)]
    return (time.process_time() - start) / sum(heard) * M, sum(heard) // BLOCK


def million(steps: int = 1000, n: int = 10**6) -> None:
    """The timeline of a million clients, always there or in turns of ten minutes, beside the training."""
    engine = fs.engine("batched", task({"kind": "linear"}), fs.Local(lr=0.05, steps=5, batch=32))
    start, few = time.process_time(), 20
    for t in range(1, few + 1):
        engine.train([fs.core.Job(engine.task.init(1), np.arange(100), 1, t, engine.local)])
    print(f"training: {(time.process_time() - start) / few * steps:.1f} s")
    for name, who in (("always there", fs.Bernoulli(1.0)), ("there in 30 % of the time", fs.Bernoulli(0.3))):
        start, clock = time.process_time(), Clock(Buffer(100, 1000), Lognormal(), round_seconds=600.0)
        rows = clock.rows(who, n, Load(np.full(n, 5), 2440, 2440), seed=1)
        *_, last = itertools.islice(rows, steps)
        print(
            f"timeline, {name}: {time.process_time() - start:.1f} s for {last.seconds / 3600:.2g} hours", flush=True
        )


def main() -> None:
    for name, model in (("linear", {"kind": "linear"}), ("MLP", {"kind": "mlp", "hidden": [64]})):
        engine = fs.engine("batched", task(model), fs.Local(lr=0.05, steps=5, batch=32))
        waits = rounds(engine, Clock(Rounds(ask=M), Constant(1.0)))
        late = rounds(engine, Clock(Buffer(M, 2 * M), Lognormal()))
        best = {"waits": float("inf"), "late": float("inf")}
        for _ in range(BLOCKS):
            for key, run in (("waits", waits), ("late", late)):
                best[key] = min(best[key], block(run)[0])
        ratio = best["late"] / best["waits"]
        waited, came = 1e3 * best["waits"], 1e3 * best["late"]
        print(f"{name}: {waited:.2f} ms synchronous, {came:.2f} ms asynchronous, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
    million()

"""What a run in engine `pool` costs besides training: `python benchmarks/pool.py`.

Seconds of all processors in a run of FedStale, beside those that the processes of the pool spend in training.
"""

import multiprocessing
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import workloads
from measure import processor_seconds

from fedstale.engines.processes import worker
from fedstale.engines.processes.pool import Pool
from fedstale.participation.bernoulli import Bernoulli
from fedstale.simulate import simulate
from fedstale.strategies.fedstale import FedStale
from fedstale.tasks.shortcuts import laid_out
from fedstale.tasks.supervised import Supervised

ROUNDS = 20


class Noted(Supervised):
    """A task that notes, in a file for each process of a pool, how long this one has trained."""

    folder: str

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if multiprocessing.parent_process() is None:  # a copy, in the process that has the pool
            return
        trained, file = worker.answer, Path(self.folder) / str(os.getpid())
        total = np.memmap(file, np.float64, "w+", shape=1)

        def noted(*args: Any) -> Any:
            begin = time.thread_time()
            reply = trained(*args)
            total[0] += time.thread_time() - begin
            return reply

        worker.answer = noted


def seconds(w: workloads.Workload, rounds: int = ROUNDS) -> tuple[float, float]:
    """Of processors, in so many rounds: training, and the whole run."""
    with tempfile.TemporaryDirectory() as folder:
        task = Noted(partial(w.model.build, w.shape, w.classes), workloads.samples(w))
        task.folder = folder

        def so_far() -> tuple[float, float]:
            training = sum(np.fromfile(file)[0] for file in Path(folder).iterdir())
            return training, processor_seconds(os.getpid())

        with Pool(laid_out(task), w.local) as engine:
            run = simulate(engine, FedStale(0.5), Bernoulli(1.0), rounds=rounds + 1)
            next(run)  # starts the processes
            before = so_far()
            for _ in run:
                pass
            training, whole = (now - then for now, then in zip(so_far(), before, strict=True))
    return training, whole


def main() -> None:
    for name in ("transformer", "lora", "resnet18"):
        training, whole = seconds(workloads.WORKLOADS[name])
        more = 100 * (whole / training - 1)
        print(f"{name}: training {training:.2f} s, the run {whole:.2f} s: {more:.1f} % more", flush=True)


if __name__ == "__main__":
    main()

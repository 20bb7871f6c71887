"""A round on a GPU beside the same round on the CPU: `python benchmarks/gpu.py [--device cuda]`.

For several workloads of `fedstale bench`: milliseconds of a round by the engine `auto` takes on the CPU, and on
the device by `serial`, in bfloat16 too, and by `batched` where the model can be stacked; best of several rounds, in
turns. `apart` is the largest difference between the updates of the device and those of `serial` on the CPU over the
largest update.
The last two rows of a workload are whole rounds of FedStale in `serial`, with its sums and memory in numpy and on
the device (`aggregate="device"`): the second is compared with the first, in its parameters after the last round.
Nobody has run it on a GPU yet: please send what it prints, with the name of the GPU.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from typing import get_args

import numpy as np
import torch
import workloads
from rich.console import Console
from rich.table import Table
from workloads import Workload, samples

import fedstale as fs
from fedstale.core import BadInput, Engine, Job
from fedstale.engines import make
from fedstale.tasks.supervised import Aggregate, Precision, Supervised

WHERE: tuple[tuple[str, Precision], ...] = (("serial", "float32"), ("batched", "float32"), ("serial", "bfloat16"))
NAMES = ("mlp", "mnist-cnn", "resnet18", "lstm")


def engine_of(
    w: Workload, kind: str, device: str, precision: Precision = "float32", aggregate: Aggregate = "cpu"
) -> Engine | None:
    """An engine with the samples of a workload on a device; None where the model cannot be stacked."""
    build = partial(w.model.build, w.shape, w.classes)
    task = Supervised(build, samples(w), device=device, precision=precision, aggregate=aggregate)
    try:
        return make(kind, task, w.local)
    except BadInput:
        return None


def job_of(w: Workload, engine: Engine, t: int) -> Job:
    return Job(engine.task.init(0), np.arange(w.clients), seed=0, t=t, local=w.local)


def milliseconds(w: Workload, engine: Engine, t: int, device: str) -> float:
    """One round, until the device has nothing left to do."""
    start = time.perf_counter()
    engine.train([job_of(w, engine, t)])
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def rows(w: Workload, device: str, turns: int) -> list[list[str]]:
    """Contender, milliseconds and distance from the reference, of one workload."""
    engines = {"cpu auto": engine_of(w, "auto", "cpu")}
    engines |= {f"{device} {kind} {precision}": engine_of(w, kind, device, precision) for kind, precision in WHERE}
    found = {name: engine for name, engine in engines.items() if engine is not None}
    took: dict[str, list[float]] = {name: [] for name in found}
    for t in range(turns + 1):
        for name, engine in found.items():
            took[name].append(milliseconds(w, engine, t, "cpu" if name == "cpu auto" else device))
    reference = engine_of(w, "serial", "cpu")
    assert reference is not None, "serial takes every model"
    due = reference.train([job_of(w, reference, 1)])[0].updates
    table = []
    for name, engine in found.items():
        apart = np.abs(engine.train([job_of(w, engine, 1)])[0].updates - due).max() / np.abs(due).max()
        best = min(took[name][1:])  # the first round also loads
        table.append([name, f"{best:.3g}", f"{min(took['cpu auto'][1:]) / best:.2f}", f"{apart:.1e}"])
    return table


def whole_rounds(w: Workload, device: str, turns: int) -> list[list[str]]:
    """The same of whole rounds of FedStale, its sums and memory in numpy and on the device."""
    table, first = list[list[str]](), (0.0, np.zeros(0))
    for aggregate in get_args(Aggregate):
        engine, took = engine_of(w, "serial", device, aggregate=aggregate), list[float]()
        assert engine is not None, "serial takes every model"
        played = fs.simulate(engine, fs.FedStale(0.5), fs.Bernoulli(1.0), rounds=turns + 2)
        for _ in range(turns + 2):
            start = time.perf_counter()
            params = next(played).params
            took.append(1000 * (time.perf_counter() - start))
        best = min(took[2:])  # the first round also loads, and the second takes memory for the rows
        first = first if table else (best, params)
        apart = np.abs(params - first[1]).max() / np.abs(first[1]).max()
        name = f"{device} serial, fedstale in {'numpy' if aggregate == 'cpu' else 'torch'}"
        table.append([name, f"{best:.3g}", f"{first[0] / best:.2f}", f"{apart:.1e}"])
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="of torch: cuda, mps, or cpu to try this program")
    parser.add_argument("--workloads", default=",".join(NAMES), help="separated by commas")
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args(arguments)
    table = Table("workload", "contender", "ms a round", "× cpu", "apart")
    for name in asked.workloads.split(","):
        w = workloads.WORKLOADS[name]
        for row in rows(w, asked.device, asked.turns) + whole_rounds(w, asked.device, asked.turns):
            table.add_row(name, *row)
    place = torch.cuda.get_device_name() if asked.device.startswith("cuda") else asked.device
    Console().print(f"{place}, torch {torch.__version__}", table)


if __name__ == "__main__":
    main()

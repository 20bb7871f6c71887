"""Cost of a round against clients, cohort, parameters and cores: `python benchmarks/curves.py`.

Writes docs/benchmark-curves.csv and .png; --quick measures fewer points.
"""

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from overhead import milliseconds
from workloads import CONVOLUTIONS, DENSE, LEAF, Workload, ours, samples

from fedstale.core import Job
from fedstale.core.system import cores
from fedstale.engines.processes.pool import Pool
from fedstale.participation.estimators import Known
from fedstale.strategies.fedavg import FedAvg
from fedstale.strategies.fedstale import FedStale
from fedstale.tasks.models import MLP
from fedstale.tasks.supervised import Supervised


class Point(NamedTuple):
    panel: str
    line: str
    x: float
    milliseconds: float


def best(play: Callable[[], Any], repeat: int = 5) -> float:
    """Milliseconds, after one time that does not count."""
    play()
    took = []
    for _ in range(repeat):
        start = time.perf_counter()
        play()
        took.append(time.perf_counter() - start)
    return 1000 * min(took)


def trained(w: Workload, engine: str) -> float:
    samples.cache_clear()
    with ours(w, engine) as play:
        return best(play)


def points(quick: bool) -> Iterator[Point]:
    for n in (100, 10**4, 10**6) if quick else (100, 1000, 10**4, 10**5, 10**6):
        for rule in (FedAvg(), FedStale(0.5)):
            name, ms = type(rule).__name__, milliseconds(n, 100, 1000, rule, Known(), rounds=5)
            yield Point("clients N, 100 heard, d = 1,000: all but training", name, n, ms)
    for heard in (1, 10, 100) if quick else (1, 3, 10, 30, 100, 300, 1000):
        for engine in ("serial", "batched"):
            yield Point(
                "cohort |S|, LEAF linear 60 → 10", engine, heard, trained(LEAF._replace(clients=heard), engine)
            )
    for hidden in (10, 300) if quick else (10, 30, 100, 300, 1000):
        w = DENSE._replace(model=MLP((hidden,)), hidden=(hidden,))
        for engine in ("serial", "batched"):
            yield Point("parameters d, MLP 784-h-10, 13 clients", engine, 795 * hidden + 10, trained(w, engine))
    for workers in range(1, cores() + 1):
        yield Point("cores, MNIST CNN, 13 clients", "pool", workers, pooled(CONVOLUTIONS, workers))


def pooled(w: Workload, workers: int) -> float:
    task = Supervised(_convolutions, samples(w))
    job = Job(task.init(0), np.arange(w.clients), 0, 1, w.local)
    with Pool(task, w.local, workers) as pool:
        return best(lambda: pool.train([job]), 3)


def _convolutions() -> Any:
    return CONVOLUTIONS.model.build(CONVOLUTIONS.shape, CONVOLUTIONS.classes)


def draw(measured: list[Point], file: Path) -> None:
    panels = list(dict.fromkeys(p.panel for p in measured))
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.2), layout="constrained")
    for ax, panel in zip(axes, panels, strict=True):
        for line in dict.fromkeys(p.line for p in measured if p.panel == panel):
            x, y = zip(
                *((p.x, p.milliseconds) for p in measured if (p.panel, p.line) == (panel, line)), strict=True
            )
            ax.plot(x, y, marker="o", markersize=3, linewidth=1.4, label=line)
        what, _, where = panel.partition(",")
        ax.set(xlabel=what, title=where.strip(), yscale="log", xscale="linear" if what == "cores" else "log")
        ax.title.set_fontsize(9)
        ax.legend(frameon=False)
    axes[0].set_ylabel("milliseconds a round")
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer points")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of benchmark-curves.csv and .png")
    options, measured = parser.parse_args(), []
    for point in points(options.quick):
        print(f"{point.panel}; {point.line}: {point.x:g} → {point.milliseconds:.4g} ms", flush=True)
        measured.append(point)
    with open(options.out / "benchmark-curves.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Point._fields)
        writer.writerows(p._replace(milliseconds=round(p.milliseconds, 4)) for p in measured)
    draw(measured, options.out / "benchmark-curves.png")


if __name__ == "__main__":
    main()

"""Rules without rounds, beside rules in rounds: what they have after the same time, on quadratics and on MNIST.

    python benchmarks/time.py [quadratics | mnist]

Clients have the speeds of 333 phones (`devices/phones.csv` in the data folder). Four worlds: `silo`, 40 clients
that are always there, all at work; `phones`, 100 recorded phones (`traces/flash300_events.csv.xz`) of which 10
are at work, and work is lost when one leaves. The slow half of the silo and the rarer half of the phones have
other data; in `silo-free` and `phones-free` data have nothing to do with either. Every rule has the same hours,
p_i is learned online.

Scores: the `distance` to the optimum of the quadratics; the training `objective` of an MLP on a tenth of MNIST at
14 × 14 pixels, both means over the last quarter of the hours; and the `hours` until the MLP first has 85 % in two
evaluations in a row. For each score the server's rate is the best on a tuning seed of a ladder with factor 2,
which goes on until the best is not at its end. Every run is a line of the file `docs/time_TASK.csv`, and is not
computed twice. Tables have the ratio to ACE, mean and 95 % t-interval of its logarithm over the evaluation seeds,
or the mean hours with their t-interval, and the rate.
"""

import argparse
import csv
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import fedstale as fs
from fedstale.core import Ids, Participation
from fedstale.data import ClusteredDirichlet, federate
from fedstale.data.files import roots
from fedstale.lab.build import found_in
from fedstale.participation.clock import Buffer, Clock, Devices, Rounds

D, T4 = 20, 2.776  # dimensions; the t-quantile of 97.5 % with 4 degrees of freedom
TUNING, TARGET = 1001, 0.85
SYNC = Rounds(ask=13, need=10)
RULES = {
    "ace": "ace", "ca2fl": "ca2fl", "auto": "auto", "fedstale β = 1": "fedvarp",
    "unbiased": "unbiased", "fedbuff": "fedbuff", "fedasync": "fedasync", "auto, rounds": "auto",
    "fedavg, rounds": "fedavg",
}  # fmt: skip
WORLDS = ("silo", "silo-free", "phones", "phones-free")
Key = tuple[str, str, float, int]  # world, rule, rate, seed


@cache
def phones() -> tuple[str, Participation]:
    """The table of speeds, and when 100 phones are there."""
    events = found_in("traces/flash300_events.csv.xz", roots())
    who = fs.participation.Events(events, variant="2_state", start=300.0, clients=100)
    return found_in("devices/phones.csv", roots()), who


def others(world: str, seed: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """(n,) the half of the clients with other data: the slow, the rare, or any."""
    n, (table, who) = (40 if world.startswith("silo") else 100), phones()
    speed = Devices(table).fleet(n, fs.stream(seed, "clock", "fleet")).speed  # the devices of the run
    tied = speed if world == "silo" else who.probs(n) if world == "phones" else rng.random(n)
    return np.asarray(np.argsort(np.argsort(tied)) < n // 2)


def quadratics(world: str, seed: int) -> fs.Quadratic:
    """Quadratics of two kinds of clients; the start is far from both, so that no rule gains by standing still."""
    rng = fs.stream(seed, "benchmark")
    other = others(world, seed, rng)
    centers = rng.standard_normal((len(other), D)) + np.where(other[:, None], 2.0, -2.0)
    return fs.Quadratic(centers, rng.uniform(0.5, 1.5, (len(other), D)), noise=0.5, start=np.full(D, 4.0))


class Halves(NamedTuple):
    """Two clusters of clients whose labels differ as with Dirichlet(0.3): the `other` clients, and the rest."""

    other: npt.NDArray[np.bool_]

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        lots = ClusteredDirichlet(0.3, 2).split(labels, n, rng)
        return [lots[k] for k in np.argsort(np.argsort(self.other, kind="stable"))]


@cache
def mnist(world: str, seed: int) -> Any:
    """An MLP on a tenth of MNIST, whose labels two kinds of clients share unevenly."""
    from fedstale.data.datasets import load
    from fedstale.tasks.images import image_task
    from fedstale.tasks.models import MLP

    halves = Halves(others(world, seed, fs.stream(seed, "benchmark")))
    divided = federate(load("mnist"), halves, len(halves.other), seed=seed, fraction=0.1, resolution=14)
    return image_task(divided, MLP((32,)))


class Problem(NamedTuple):
    """What is learned, for how long, and how it is scored."""

    task: Callable[[str, int], Any]
    local: fs.Local
    silo: tuple[float, float]  # seconds of a local step in the silo, and hours
    phones: tuple[float, float]
    scores: tuple[str, ...]
    seeds: tuple[int, ...]
    ladder: tuple[float, ...]  # the first rates of the server
    looks: float  # evaluations of a run, at most


PROBLEMS = {
    "quadratics": Problem(
        quadratics, fs.Local(lr=0.05, steps=5), (1.0, 0.12), (60.0, 96.0), ("distance",),
        (1, 2, 3, 4, 5), (0.05, 0.1, 0.2), math.inf,
    ),
    "mnist": Problem(
        mnist, fs.Local(lr=0.1, steps=5, batch=16), (10.0, 1.0), (60.0, 24.0), ("objective", "hours"),
        (21, 22, 23, 24, 25), (0.5, 1.0, 2.0), 100,
    ),
}  # fmt: skip


def play(problem: Problem, world: str, rule: str, rate: float, seed: int) -> list[float]:
    """The scores of a run."""
    table, who = phones()
    step_seconds, hours = problem.silo if world.startswith("silo") else problem.phones
    who = fs.Bernoulli(1.0) if world.startswith("silo") else who
    pace = SYNC if rule.endswith("rounds") else Buffer(10, 40 if world.startswith("silo") else 10)
    clock, task = Clock(pace, Devices(table, step_seconds), hours=hours), problem.task(world, seed)
    engine = fs.engine("batched", task, problem.local)
    seen: list[tuple[float, dict[str, float]]] = [(0.0, {})]  # share of the hours, metrics
    try:
        for s in fs.simulate(engine, fs.recipe(RULES[rule]).strategy, who, rounds=10**5, seed=seed,
                             server=fs.Sgd(rate), estimator=fs.Intervals(), clock=clock):  # fmt: skip
            share = (s.seconds or 0.0) / (3600 * hours)
            if share - seen[-1][0] >= 1 / problem.looks:
                seen.append((share, task.evaluate(s.params)))
    except fs.Diverged:
        return [math.inf] * len(problem.scores)
    return [hours * reached(seen) if name == "hours" else late(seen, name) for name in problem.scores]


def late(seen: list[tuple[float, dict[str, float]]], name: str) -> float:
    """The mean over the last quarter."""
    return float(np.mean([metrics[name] for share, metrics in seen if share > 0.75]))


def reached(seen: list[tuple[float, dict[str, float]]]) -> float:
    """The share of the hours after which two evaluations in a row are at the target; infinite if never."""
    at = [metrics.get("accuracy", 0.0) >= TARGET for _, metrics in seen]
    return next((seen[k][0] for k in range(1, len(seen)) if at[k - 1] and at[k]), math.inf)


class Store:
    """The scores in a file: what is there is not computed again."""

    def __init__(self, name: str) -> None:
        self.problem, self.path = PROBLEMS[name], Path(f"docs/time_{name}.csv")
        self.found = dict[Key, list[float]]()
        if self.path.exists():
            with self.path.open(newline="") as file:
                lines = [*csv.reader(file)][1:]
            self.found = {(w, r, float(x), int(s)): [float(v) for v in values] for w, r, x, s, *values in lines}
        else:
            self.path.write_text(",".join(["world,rule,rate,seed", *self.problem.scores]) + "\n")

    def score(self, name: str, world: str, rule: str, rate: float, seed: int) -> float:
        key = (world, rule, rate, seed)
        if key not in self.found:
            self.found[key] = play(self.problem, *key)
            with self.path.open("a", newline="") as file:
                csv.writer(file).writerow([*key, *(f"{value:.6g}" for value in self.found[key])])
        return self.found[key][self.problem.scores.index(name)]

    def tuned(self, name: str, world: str, rule: str) -> tuple[float, bool]:
        """The best rate on the tuning seed, and whether it is inside the ladder; of equals, by the first score."""
        ladder, both = list(self.problem.ladder), (name, self.problem.scores[0])
        while True:
            scores = [[self.score(of, world, rule, rate, TUNING) for of in both] for rate in ladder]
            best = scores.index(min(scores))
            if 0 < best < len(ladder) - 1 or len(ladder) > 12:
                return ladder[best], 0 < best < len(ladder) - 1
            ladder = [ladder[0] / 2, *ladder] if best == 0 else [*ladder, 2 * ladder[-1]]

    def cell(self, name: str, world: str, rule: str) -> str:
        """`1.30 [1.21, 1.40] (rate 0.1)`."""
        rate, inside = self.tuned(name, world, rule)
        values = np.array([self.score(name, world, rule, rate, s) for s in self.problem.seeds])
        if name != "hours":
            ace = self.tuned(name, world, "ace")[0]
            values = np.log(values / [self.score(name, world, "ace", ace, s) for s in self.problem.seeds])
        return f"{_told(values, name)} (rate {rate:g}{'' if inside else ', at the end of the ladder'})"


def _told(values: npt.NDArray[Any], name: str) -> str:
    """The mean with its interval; ratios come as logarithms."""
    if np.isinf(values).any():
        return f"not reached by {np.isinf(values).sum()} of {len(values)}"
    half = T4 * float(values.std(ddof=1)) / math.sqrt(len(values))
    mean, low, high = values.mean() + np.array([0.0, -half, half])
    if name != "hours":
        mean, low, high = np.exp([mean, low, high])
    return f"{mean:.2f}" if low == high else f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", nargs="?", choices=[*PROBLEMS], default="quadratics")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=WORLDS)
    parser.add_argument("--rules", nargs="+", choices=[*RULES], default=[*RULES])
    chosen = parser.parse_args()
    store = Store(chosen.problem)
    for name in store.problem.scores:
        print(f"| {name} | {' | '.join(chosen.worlds)} |\n|---|{'---|' * len(chosen.worlds)}")
        for rule in chosen.rules:
            print(f"| {rule} | {' | '.join(store.cell(name, w, rule) for w in chosen.worlds)} |", flush=True)
        print()


if __name__ == "__main__":
    main()

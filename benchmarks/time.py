"""Rules without rounds on quadratics: distance to the optimum after the same time, with and without waiting.

    python benchmarks/time.py [--out docs/time_quadratics.csv]

Clients have the speeds of 333 phones (`devices/phones.csv` in the data folder). Four worlds: `silo`, 40 clients
that are always there, all at work; `phones`, 100 recorded phones (`traces/flash300_events.csv.xz`) of which 10
are at work, and work is lost when one leaves. The slow half of the silo and the rarer half of the phones have
other data; in `silo-free` and `phones-free` data have nothing to do with either. Every rule has the same hours,
p_i is learned online. The server's rate is the best on a tuning seed of a ladder with factor 2, which goes on
until the best is not at its end. Every distance (the mean of the last quarter of the hours) is a line of the
file, and is not computed twice. The table has the ratio to ACE, mean and 95 % t-interval of its logarithm over
the evaluation seeds, and the rate.
"""

import argparse
import csv
import math
from functools import cache
from pathlib import Path

import numpy as np

import fedstale as fs
from fedstale.clock import Buffer, Clock, Devices, Pace, Rounds
from fedstale.data.files import roots
from fedstale.lab.build import found_in

D, T4 = 20, 2.776  # dimensions; the t-quantile of 97.5 % with 4 degrees of freedom
SEEDS, TUNING, LADDER = (1, 2, 3, 4, 5), 1001, (0.05, 0.1, 0.2)
SYNC = Rounds(ask=13, need=10)
RULES = {
    "ace": "ace", "ca2fl": "ca2fl", "auto": "auto", "fedstale β = 1": "fedvarp",
    "unbiased": "unbiased", "fedbuff": "fedbuff", "fedasync": "fedasync", "auto, rounds": "auto",
    "fedavg, rounds": "fedavg",
}  # fmt: skip
WORLDS = ("silo", "silo-free", "phones", "phones-free")
Key = tuple[str, str, float, int]  # world, rule, rate, seed


@cache
def clock_of(world: str) -> tuple[int, Clock, fs.core.Participation]:
    """The number of clients, the clock of a server that does not wait, and when clients are there."""
    table = found_in("devices/phones.csv", roots())
    if world.startswith("silo"):
        return 40, Clock(Buffer(10, 40), Devices(table), hours=0.06), fs.Bernoulli(1.0)
    events = found_in("traces/flash300_events.csv.xz", roots())
    phones = fs.participation.Events(events, variant="2_state", start=300.0, clients=100)
    return 100, Clock(Buffer(10, 10), Devices(table, step_seconds=60.0), hours=24.0), phones


def task(world: str, seed: int) -> fs.Quadratic:
    """Quadratics of two kinds of clients: one kind for the slow or rare half, or for any half."""
    n, clock, who = clock_of(world)
    rng = fs.stream(seed, "benchmark")
    speed = clock.latency.fleet(n, fs.stream(seed, "clock", "fleet")).speed  # the devices of the run
    tied = speed if world == "silo" else who.probs(n) if world == "phones" else rng.random(n)
    other = np.argsort(np.argsort(tied)) < n // 2
    centers = rng.standard_normal((n, D)) + np.where(other[:, None], 2.0, -2.0)
    return fs.Quadratic(centers, rng.uniform(0.5, 1.5, (n, D)), noise=0.5)


def distance(world: str, rule: str, rate: float, seed: int) -> float:
    """The mean distance of the last quarter of the hours."""
    _, clock, who = clock_of(world)
    pace: Pace = SYNC if rule.endswith("rounds") else clock.pace
    mine = Clock(pace, clock.latency, hours=clock.hours)
    quadratic = task(world, seed)
    engine = fs.engine("batched", quadratic, fs.Local(lr=0.05, steps=5))
    told: list[float] = []
    try:
        for s in fs.simulate(engine, fs.recipe(RULES[rule]).strategy, who, rounds=10**5, seed=seed,
                             server=fs.Sgd(rate), estimator=fs.Intervals(), clock=mine):  # fmt: skip
            if (s.seconds or 0.0) > 0.75 * 3600 * (clock.hours or 0.0):
                told.append(quadratic.evaluate(s.params)["distance"])
    except fs.Diverged:
        return math.inf
    return float(np.mean(told))


class Store:
    """The distances in a file: what is there is not computed again."""

    def __init__(self, path: Path) -> None:
        self.path, self.found = path, dict[Key, float]()
        if path.exists():
            with path.open(newline="") as file:
                self.found = {(w, r, float(x), int(s)): float(v) for w, r, x, s, v in list(csv.reader(file))[1:]}
        else:
            path.write_text("world,rule,rate,seed,distance\n")

    def __call__(self, world: str, rule: str, rate: float, seed: int) -> float:
        key = (world, rule, rate, seed)
        if key not in self.found:
            self.found[key] = distance(*key)
            with self.path.open("a", newline="") as file:
                csv.writer(file).writerow([*key, f"{self.found[key]:.6g}"])
        return self.found[key]


def tuned(store: Store, world: str, rule: str) -> tuple[float, bool]:
    """The best rate on the tuning seed, and whether it is inside the ladder."""
    ladder = list(LADDER)
    while True:
        best = int(np.argmin([store(world, rule, rate, TUNING) for rate in ladder]))
        if 0 < best < len(ladder) - 1 or len(ladder) > 12:
            return ladder[best], 0 < best < len(ladder) - 1
        ladder = [ladder[0] / 2, *ladder] if best == 0 else [*ladder, 2 * ladder[-1]]


def cell(store: Store, world: str, rule: str) -> str:
    """`1.30 [1.21, 1.40] (rate 0.1)`."""
    (rate, inside), (of_ace, _) = tuned(store, world, rule), tuned(store, world, "ace")
    logs = np.array([math.log(store(world, rule, rate, s) / store(world, "ace", of_ace, s)) for s in SEEDS])
    half = T4 * float(logs.std(ddof=1)) / math.sqrt(len(SEEDS))
    mean, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    told = f"{mean:.2f}" if rule == "ace" else f"{mean:.2f} [{low:.2f}, {high:.2f}]"
    return f"{told} (rate {rate:g}{'' if inside else ', at the end of the ladder'})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/time_quadratics.csv"))
    store = Store(parser.parse_args().out)
    cells = {(rule, world): cell(store, world, rule) for world in WORLDS for rule in RULES}
    print(f"| rule | {' | '.join(WORLDS)} |\n|---|{'---|' * len(WORLDS)}")
    for rule in RULES:
        print(f"| {rule} | {' | '.join(cells[rule, world] for world in WORLDS)} |")


if __name__ == "__main__":
    main()

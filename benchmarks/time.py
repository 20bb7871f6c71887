"""Rules without rounds on quadratics: distance to the optimum after the same time, with and without waiting.

    python benchmarks/time.py [--seeds 2] [--devices devices/phones.csv]

Two worlds of 40 clients that are always there: the slow half has other data (`silo`), or data have nothing to do
with speed (`silo-free`). Speeds are lognormal as those of 333 phones, or those of the table. Every rule has
the same hours; its server rate is the best of three on other seeds. The table has the mean of the distance over the
last quarter, divided by that of ACE.
"""

import argparse

import numpy as np

import fedstale as fs
from fedstale.clock import Buffer, Clock, Devices, Latency, Load, Lognormal, Rounds

N, D, HOURS = 40, 20, 0.06
RATES = (0.1, 0.3, 1.0)
LATE, SYNC = Buffer(10, 40), Rounds(ask=13, need=10)
RULES = {
    "ace": ("ace", LATE), "fedbuff": ("fedbuff", LATE), "mifa, rounds": ("mifa", SYNC), "auto": ("auto", LATE),
    "ca2fl": ("ca2fl", LATE), "fedasync": ("fedasync", LATE), "fedavg, rounds": ("fedavg", SYNC),
    "fedstale β = 1": ("fedvarp", LATE), "unbiased": ("unbiased", LATE),
}  # fmt: skip


def task(tied: bool, latency: Latency, seed: int) -> fs.Quadratic:
    """Quadratics of two kinds of clients; `tied` gives one kind to the slow half of the devices of this seed."""
    rng = fs.stream(seed, "benchmark")
    speed = latency.fleet(N, fs.stream(seed, "clock", "fleet")).speed  # the devices of the run
    slow = np.argsort(np.argsort(speed if tied else rng.random(N))) < N // 2
    centers = rng.standard_normal((N, D)) + np.where(slow[:, None], 2.0, -2.0)
    return fs.Quadratic(centers, rng.uniform(0.5, 1.5, (N, D)), noise=0.5)


def distance(name: str, rate: float, tied: bool, latency: Latency, seed: int) -> float:
    """The mean distance of the last quarter of the hours."""
    kind, pace = RULES[name]
    world, clock = task(tied, latency, seed), Clock(pace, latency, round_seconds=1e9)
    rows = clock.rows(fs.Bernoulli(1.0), N, Load(np.full(N, 5), 4 * D, 4 * D), seed)
    ends: list[float] = []
    while not ends or ends[-1] < 3600 * HOURS:
        ends.append(next(rows).seconds)
    engine = fs.engine("batched", world, fs.Local(lr=0.05, steps=5))
    told, estimator = [], fs.Intervals()
    try:
        for s in fs.simulate(engine, fs.recipe(kind).strategy, fs.Bernoulli(1.0), rounds=len(ends), seed=seed,
                             server=fs.Sgd(rate), estimator=estimator, clock=clock):  # fmt: skip
            if (s.seconds or 0.0) > 0.75 * 3600 * HOURS:
                told.append(world.evaluate(s.params)["distance"])
    except fs.Diverged:
        return float("inf")
    return float(np.mean(told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--devices", help="a table of relative speeds, as .csv; lognormal if omitted")
    given = parser.parse_args()
    latency: Latency = Devices(given.devices) if given.devices else Lognormal()
    print("| rule | silo | silo-free |\n|---|---|---|")
    base: list[float] = []
    for name in RULES:
        cells = []
        for k, tied in enumerate((True, False)):
            tuned = min(RATES, key=lambda rate: distance(name, rate, tied, latency, 1000))
            mean = np.mean([distance(name, tuned, tied, latency, seed) for seed in range(1, given.seeds + 1)])
            base += [float(mean)] * (len(base) == k)
            cells.append(f"{mean / base[k]:.2f} (rate {tuned:g})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

"""How `auto` was chosen, and how it does where nothing was chosen: `python benchmarks/auto_cells.py`.

    python benchmarks/auto_cells.py development     the cells and seeds that the rule was chosen with
    python benchmarks/auto_cells.py fresh           other data, other shapes, other seeds: judged once
    python benchmarks/auto_cells.py later           up to 100,000 clients, 300 rounds, a GRU: judged once, too
    … --rules fedavg auto "no doubt" "β = 1"        also the rule without one of its ingredients

A cell is a task with a participation and two rates; each rule takes the rate with the least training objective.
Results are kept in a file (--store), so a run that was stopped goes on where it was. Tables show the accuracy at
some rounds, and the missing progress (objective - best) / (start - best), best being the least objective of any
rule of the table. FEDSTALE_DATA is the folder of the data sets; `--only TEXT` takes cells with TEXT in their name.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import fedstale as fs
from fedstale.core import Array, Floats, Ids, Round
from fedstale.strategies.self_tuning import Tuned

MARKS, LAST = (10, 20, 50, 100, 200), 5  # rounds with an accuracy; so many last rounds are the end
Who = Callable[[int, Ids], fs.core.Participation]  # from the number of clients and the label that each has most of
Curve = dict[int, tuple[float, float]]  # round → accuracy and objective
PLAIN, PHONE = {"steps": 5, "batch": 16}, {"steps": 5, "batch": 8}
MOMENTUM, ADAM = {"steps": 10, "batch": 16, "momentum": 0.9}, {"steps": 5, "batch": 16, "optimizer": "adam"}


class Cell(NamedTuple):
    """A task and a participation."""

    data: str
    clients: int
    split: str
    model: Any
    who: Who
    rounds: int
    rates: tuple[float, float]
    local: dict[str, Any]
    fraction: float = 0.1
    known: bool = False  # p, else it is FedAU's estimate


class Halves:
    """The second half of the clients has the second half of the labels."""

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        order, second = rng.permutation(len(labels)), labels > np.median(np.unique(labels))
        parts = (np.array_split(order[second[order] == k], m) for k, m in ((False, n - n // 2), (True, n // 2)))
        return [mine for part in parts for mine in part]


SPLITS: dict[str, fs.data.Partition] = {
    "iid": fs.data.IID(), "shards": fs.data.Shards(2), "dirichlet": fs.data.Dirichlet(0.3, min_samples=4),
    "halves": Halves(), "by-writer": fs.data.ByWriter(largest=True),
}  # fmt: skip
LINEAR, MLP, CNN = fs.models.Linear(), fs.models.MLP((32,)), fs.models.CNN((8, 16), 3, (32,))
RESOLUTION = {"mnist": 14, "fashion-mnist": 14, "cifar-10": 16, "digits": None, "shakespeare": None}


def always(process: fs.core.Participation) -> Who:
    return lambda n, labels: process


def spread(low: float, high: float) -> Who:
    """Rates that are even on a logarithmic scale."""
    return lambda n, labels: fs.Bernoulli(np.exp(np.random.default_rng(n).uniform(np.log(low), np.log(high), n)))


def phones(n: int, labels: Ids) -> fs.core.Participation:
    """Phones that charge, by the half-hour."""
    place = Path(os.environ.get("FEDSTALE_DATA", "data")) / "traces/flash300_events.csv.xz"
    return fs.participation.Events(place, variant="2_state", start=300.0, round_seconds=1800.0, clients=n)


def tied(n: int, labels: Ids) -> fs.core.Participation:
    """Clients with high labels come rarely."""
    return fs.Bernoulli(np.where(labels > np.median(labels), 0.05, 0.5))


TWO = {p: always(fs.TwoGroups(p)) for p in (0.05, 0.07, 0.1, 0.15, 0.2)}
CHAINS = always(fs.participation.MarkovClasses())
TURNS = always(fs.participation.Cyclic(4, 4, 12))
HOURS = always(fs.participation.Diurnal(0.3, 0.25, 24, 3))
M, F, C, D, K = "mnist", "fashion-mnist", "cifar-10", "digits", True
GRU, SPEAKERS, MANY = fs.models.GRU(), "shakespeare", "more clients than samples"
CELLS: dict[str, dict[str, Cell]] = {
    "development": {
        "1,000 phones, IID": Cell(M, 1000, "iid", LINEAR, spread(0.02, 0.02), 100, (0.15, 0.5), PHONE, 0.3, K),
        "1,000 phones, shards": Cell(M, 1000, "shards", MLP, spread(0.02, 0.02), 100, (0.15, 0.5), PHONE, 0.3),
        "2,000 uneven": Cell(M, 2000, "shards", LINEAR, spread(0.002, 0.05), 100, (0.15, 0.5), PHONE, 0.4),
        "20 silos, halves": Cell(M, 20, "halves", LINEAR, TWO[0.1], 150, (0.1, 0.3), PLAIN, 0.1, K),
        "20 silos, halves, MLP": Cell(M, 20, "halves", MLP, TWO[0.1], 150, (0.1, 0.3), PLAIN),
        "30 silos, p_min 0.05": Cell(D, 30, "dirichlet", MLP, TWO[0.05], 200, (0.1, 0.3), PHONE, 1.0),
        "10 silos, mom., IID": Cell(M, 10, "iid", MLP, TWO[0.2], 25, (0.01, 0.03), MOMENTUM),
        "10 silos, mom., halves": Cell(M, 10, "halves", MLP, TWO[0.2], 25, (0.01, 0.03), MOMENTUM),
        "24 Markov chains": Cell(D, 24, "dirichlet", MLP, CHAINS, 150, (0.1, 0.3), PHONE, 1.0, K),
        "20 in turns": Cell(D, 20, "dirichlet", LINEAR, TURNS, 150, (0.3, 1.0), PHONE, 1.0, K),
        "10 that rarely come, IID": Cell(M, 10, "iid", MLP, spread(0.1, 0.1), 100, (0.1, 0.3), PLAIN, 0.1, K),
        "10 that rarely come, halves": Cell(M, 10, "halves", MLP, spread(0.1, 0.1), 100, (0.1, 0.3), PLAIN),
        "60 recorded phones": Cell(D, 60, "dirichlet", MLP, phones, 200, (0.1, 0.3), PHONE, 1.0),
        "40 uneven silos": Cell(M, 40, "dirichlet", LINEAR, spread(0.02, 0.9), 150, (0.1, 0.3), PLAIN, 0.1, K),
    },
    "fresh": {
        "1,000 phones, IID": Cell(F, 1000, "iid", MLP, spread(0.05, 0.05), 100, (0.1, 0.3), PHONE, 0.2),
        "5,000 phones, shards": Cell(F, 5000, "shards", LINEAR, spread(0.01, 0.01), 50, (0.05, 0.15), PHONE, 1.0),
        "3,000 uneven": Cell(F, 3000, "shards", LINEAR, spread(0.002, 0.05), 50, (0.05, 0.15), PHONE, 0.6, K),
        "quickstart, IID": Cell(C, 10, "iid", CNN, TWO[0.2], 25, (0.01, 0.03), MOMENTUM, 0.05),
        "quickstart, halves": Cell(C, 10, "halves", CNN, TWO[0.2], 25, (0.01, 0.03), MOMENTUM, 0.05),
        "16 silos, halves": Cell(F, 16, "halves", MLP, TWO[0.07], 150, (0.1, 0.3), PLAIN),
        "40 by label": Cell(F, 40, "shards", MLP, tied, 100, (0.1, 0.3), PLAIN, 0.1, K),
        "30 by the hour": Cell(F, 30, "dirichlet", LINEAR, HOURS, 100, (0.05, 0.15), PLAIN),
        "80 recorded phones": Cell(F, 80, "shards", LINEAR, phones, 150, (0.05, 0.15), PLAIN),
        "12 silos, Adam": Cell(D, 12, "dirichlet", MLP, TWO[0.15], 60, (0.001, 0.003), ADAM, 1.0),
        "everybody": Cell(D, 16, "dirichlet", MLP, spread(1.0, 1.0), 25, (0.1, 0.3), PHONE, 1.0),
    },
    "later": {
        "100,000 phones": Cell(F, 100_000, MANY, LINEAR, spread(5e-4, 5e-4), 200, (0.05, 0.15), PHONE),
        "10,000 phones, shards": Cell(
            F, 10_000, "shards", LINEAR, spread(5e-3, 5e-3), 200, (0.05, 0.15), PHONE, 1.0
        ),
        "1,000 phones, shards": Cell(F, 1000, "shards", MLP, spread(0.05, 0.05), 200, (0.1, 0.3), PHONE, 0.2),
        "20 silos, IID": Cell(F, 20, "iid", MLP, TWO[0.2], 200, (0.1, 0.3), PLAIN),
        "20 silos, 300 rounds": Cell(F, 20, "dirichlet", MLP, TWO[0.1], 300, (0.1, 0.3), PLAIN),
        "quickstart, IID": Cell(C, 10, "iid", CNN, TWO[0.2], 25, (0.01, 0.03), MOMENTUM, 0.05),
        "quickstart, halves": Cell(C, 10, "halves", CNN, TWO[0.2], 25, (0.01, 0.03), MOMENTUM, 0.05),
        "20 speakers, GRU": Cell(SPEAKERS, 20, "by-writer", GRU, TWO[0.15], 50, (1.0, 3.0), PLAIN, 0.1),
        "everybody": Cell(F, 20, "dirichlet", MLP, spread(1.0, 1.0), 50, (0.1, 0.3), PLAIN),
    },
}
SEEDS = {"development": (101, 102), "fresh": (1, 2), "later": (11, 12, 13)}


class AsGiven(fs.SelfTuning):
    """p_i as it is given."""

    def _inverse(self, state: Tuned, r: Round) -> Floats:
        return r.inverse()


class NoDoubt(fs.SelfTuning):
    """One client is believed like many."""

    def _factor(self, total: Floats, squares: Floats, absent: Floats, remembered: bool) -> Floats:
        return super()._factor(total, 0 * squares, absent, remembered)


class NoCentre(fs.SelfTuning):
    """m = 0."""

    def aggregate(self, state: Tuned, r: Round) -> tuple[Array, Tuned]:
        return super().aggregate(state._replace(centre=np.zeros_like(state.centre)), r)


RULES: dict[str, fs.core.Strategy] = {
    "fedavg": fs.FedAvg(), "mifa": fs.strategies.MIFA(), "fedstale": fs.FedStale(0.5),
    "auto": fs.recipe("auto").strategy, "p as given": AsGiven(), "no doubt": NoDoubt(), "m = 0": NoCentre(),
    "β = 0": fs.SelfTuning(beta=0.0), "β = 1": fs.SelfTuning(beta=1.0), "last updates": fs.SelfTuning(gain=1.0),
}  # fmt: skip


def drawn(data: fs.data.Dataset, clients: int, size: int | None, seed: int) -> fs.data.Federated:
    """Two samples of each of two labels for every client; clients share samples. The test set is the data's own."""
    whole = fs.data.federate(data, fs.data.IID(), 1, seed=seed, test="official", resolution=size)
    rng, of = np.random.default_rng(seed), [np.flatnonzero(whole.y == k) for k in range(whole.classes)]
    two = (rng.choice(len(of), 2, replace=False) for _ in range(clients))
    rows, ends = np.concatenate([rng.choice(of[k], 2) for pair in two for k in pair]), np.arange(clients + 1)
    return replace(whole, x=whole.x[rows], y=whole.y[rows], train_offsets=4 * ends, test_offsets=0 * ends)


@cache
def task_of(cell: str, kind: str, seed: int) -> tuple[fs.Supervised, Ids]:
    """The task, and the label that each client has most of."""
    c = CELLS[kind][cell]
    data, size = fs.data.load(c.data), RESOLUTION[c.data]
    if c.split == MANY:
        return fs.image_task(drawn(data, c.clients, size, seed), c.model), np.zeros(c.clients, np.int64)
    shared = fs.data.federate(data, SPLITS[c.split], c.clients, seed=seed, fraction=c.fraction, resolution=size)
    most = np.array([np.bincount(shared.train(i)[1], minlength=10).argmax() for i in range(c.clients)])
    return fs.image_task(shared, c.model), most


def curve(kind: str, cell: str, rule: str, seed: int, rate: float) -> Curve:
    """Accuracy and objective at the start, at the marks and in the last rounds; nothing after a divergence."""
    c, (task, labels) = CELLS[kind][cell], task_of(cell, kind, seed)
    engine = fs.engine("serial" if "optimizer" in c.local else "batched", task, fs.Local(lr=rate, **c.local))
    estimator = fs.estimators.Known() if c.known else fs.Intervals(cutoff=None)
    found, who = {0: measured(task, task.init(seed))}, c.who(c.clients, labels)
    try:
        for s in fs.simulate(engine, RULES[rule], who, rounds=c.rounds, seed=seed, estimator=estimator):
            if s.t in MARKS or s.t > c.rounds - LAST:
                found[s.t] = measured(task, s.params)
    except fs.Diverged:
        pass
    return found


def measured(task: fs.Supervised, params: Array) -> tuple[float, float]:
    values = task.evaluate(params)
    return float(values["accuracy"]), float(values["objective"])


class Store(dict[str, Curve]):
    """Curves by their key, in a file with a line for each."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        for line in file.read_text().splitlines() if file.exists() else ():
            key, found = json.loads(line)
            self[key] = {int(t): tuple(pair) for t, pair in found.items()}

    def fill(self, kind: str, cells: Sequence[str], rules: Sequence[str], seeds: Sequence[int]) -> None:
        """Play what is missing."""
        for cell in cells:
            for seed in seeds:
                for rule in [rule for rule in rules if rule in RULES]:
                    for rate in CELLS[kind][cell].rates:
                        if (key := f"{kind}|{cell}|{rule}|{seed}|{rate}") not in self:
                            self[key] = curve(kind, cell, rule, seed, rate)
                            with self.file.open("a") as lines:
                                lines.write(json.dumps([key, self[key]]) + "\n")
            task_of.cache_clear()

    def best(self, kind: str, cell: str, rule: str, seed: int) -> tuple[float, float, Curve]:
        """Objective, accuracy and curve at the rate whose objective ends lowest."""
        c = CELLS[kind][cell]
        curves = [self[f"{kind}|{cell}|{rule}|{seed}|{rate}"] for rate in c.rates]
        last = range(c.rounds - LAST + 1, c.rounds + 1)
        ends = [np.array([x.get(t, (0.0, np.inf)) for t in last]) for x in curves]
        k = int(np.argmin([np.nan_to_num(end[:, 1].mean(), nan=np.inf) for end in ends]))
        return float(ends[k][:, 1].mean()), float(ends[k][:, 0].mean()), curves[k]


def report(store: Store, kind: str, cells: Sequence[str], rules: Sequence[str], seeds: Sequence[int]) -> None:
    """A line per cell and rule, and one per rule over all cells."""
    table = Table("cell", "rule", *(f"at {t}" for t in MARKS), "accuracy", "missing progress", title=kind)
    missing, accuracy, behind = ({rule: list[Any]() for rule in rules} for _ in range(3))
    for cell in cells:
        found = {rule: [store.best(kind, cell, rule, seed) for seed in seeds] for rule in rules}
        start = np.mean([f[2][0][1] for f in found[rules[0]]])
        best = min(np.mean([f[0] for f in runs]) for runs in found.values())
        marks = [t for t in MARKS if t <= CELLS[kind][cell].rounds]
        at = {r: [100 * np.mean([f[2].get(t, (0, 0))[0] for f in x]) for t in marks] for r, x in found.items()}
        for k, (rule, runs) in enumerate(found.items()):
            missing[rule].append(100 * (np.mean([f[0] for f in runs]) - best) / (start - best))
            accuracy[rule].append(100 * np.mean([f[1] for f in runs]))
            behind[rule].append(max(y - x for x, y in zip(at[rule], at[rules[0]], strict=True)))
            row = [f"{x:.1f}" for x in at[rule]] + [""] * (len(MARKS) - len(marks))
            table.add_row("" if k else cell, rule, *row, f"{accuracy[rule][-1]:.1f}", f"{missing[rule][-1]:.1f} %")
    show = Console(width=130, highlight=False).print
    show(table)
    ends = Table("rule", "missing progress: mean", "worst", "accuracy: mean", f"most behind {rules[0]} at a mark")
    for rule in rules:
        lost, right, most = missing[rule], np.mean(accuracy[rule]), max(behind[rule])
        ends.add_row(rule, f"{np.mean(lost):.2f} %", f"{max(lost):.1f} %", f"{right:.2f}", f"{most:.1f}")
    show(ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=CELLS)
    parser.add_argument("--rules", nargs="+", default=["fedavg", "mifa", "auto"], help="compared with the first")
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--store", type=Path, default=Path("auto_cells.jsonl"))
    asked = parser.parse_args()
    cells = [cell for cell in CELLS[asked.kind] if asked.only in cell]
    store, seeds = Store(asked.store), asked.seeds or SEEDS[asked.kind]
    store.fill(asked.kind, cells, asked.rules, seeds)
    report(store, asked.kind, cells, asked.rules, seeds)


if __name__ == "__main__":
    main()

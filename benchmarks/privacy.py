"""Privacy against accuracy where clients come and go: `python benchmarks/privacy.py`.

MNIST, 2,900 clients of 20 samples, a small MLP. The clients are 290 recorded phones in ten time zones, two hours
apart; a round is half an hour, training takes one day. The half that comes less often has the digits 5 to 9.
FedAvg, Unbiased and FedStale, whose updates or differences are clipped, at several ε; noise is calibrated to the
dearest client. Each rule takes the clip with the best test accuracy at ε = 2 on a tuning seed; the seeds of the
table are others. p_i is known, and 1 / p_i is capped at ten for all.

Results are kept in a file (--store), so that a run that was stopped goes on where it was, and written as a table
(--csv) at the end. FEDSTALE_DATA is the folder of the data sets.
"""

import argparse
import csv
import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fedstale as fs
from fedstale.core import Ids, Mask, scores_of_clients

PHONES, ROUNDS, ZONES, HOURS = 290, 48, 10, 2
N = PHONES * ZONES
SEEDS, TUNING = (1, 2, 3, 4, 5), 101
EPSILONS, FIRST = (2.0, 8.0, 1.0, 4.0), 2.0
CLIPS = (0.2, 0.4, 0.8, 1.6)
LOCAL = fs.Local(lr=0.1, steps=4, batch=10)
CAP = 10.0 / N  # of a_i / p_i
RULES = ("fedavg", "unbiased", "fedstale, Δ clipped", "fedstale, difference clipped")
T95 = 2.776  # Student's t, four degrees of freedom


def rule_of(name: str, clip: float) -> fs.core.Strategy:
    if name == "fedavg":
        return fs.strategies.PrivateFedAvg(clip)
    if name == "unbiased":
        return fs.strategies.PrivateFedStale(clip, 0.0, max_weight=CAP)
    difference = clip / 5 if "difference" in name else None
    return fs.strategies.PrivateFedStale(clip, 1.0, difference, max_weight=CAP)


@cache
def presence() -> Mask:
    """(rounds, n) who is there: the recorded phones, in each time zone some hours later."""
    place = Path(os.environ.get("FEDSTALE_DATA", "data")) / "traces/flash300_events.csv.xz"
    phones = fs.participation.Events(place, variant="2_state", start=300.0, round_seconds=1800.0, clients=PHONES)
    rows = phones.rows(PHONES, np.random.default_rng(0))
    days = np.array([next(rows) for _ in range(6 * 48)])
    return np.concatenate([np.roll(days, 2 * HOURS * k, axis=0) for k in range(ZONES)], axis=1)


def rare() -> Mask:
    """(n,) the half of the clients that comes less often."""
    return np.argsort(np.argsort(presence().mean(axis=0), kind="stable")) < N // 2


class ByPresence:
    """The half of the clients that comes less often has the second half of the digits."""

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        order, high = rng.permutation(len(labels)), labels > 4
        parts = {k: iter(np.array_split(order[high[order] == k], int((rare() == k).sum()))) for k in (False, True)}
        return [next(parts[bool(k)]) for k in rare()]


@cache
def engine_of(seed: int) -> fs.core.Engine:
    data = fs.data.federate(fs.data.load("mnist"), ByPresence(), N, seed=seed, resolution=14)
    return fs.engine("batched", fs.image_task(data, fs.models.MLP((16,))), LOCAL)


def played(name: str, epsilon: float | None, clip: float, seed: int) -> dict[str, Any]:
    """Accuracies at the end, and ε of clients that come often and rarely."""
    engine, here = engine_of(seed), presence()
    privacy = None if epsilon is None else fs.Privacy(epsilon=epsilon, delta=1e-5)
    *_, s = fs.simulate(engine, rule_of(name, clip), fs.Trace(here), rounds=ROUNDS, seed=seed, privacy=privacy)
    own = np.asarray(scores_of_clients(engine.task, s)["accuracy"])
    found = {"accuracy": float(engine.task.evaluate(s.params)["accuracy"]), "rare": float(np.nanmean(own[rare()]))}
    if privacy is None:
        return found
    ε, p = s.checkpoint.state.ledger.epsilons(), here[:ROUNDS].mean(axis=0)
    come = np.flatnonzero(p > 0)
    order = come[np.argsort(p[come], kind="stable")]
    tenth = len(order) // 10
    return found | {"rare_ε": float(ε[order[:tenth]].mean()), "frequent_ε": float(ε[order[-tenth:]].mean()),
                    "largest_ε": float(ε.max())}  # fmt: skip


class Store(dict[str, dict[str, Any]]):
    """Results by their key, in a file with a line for each."""

    def __init__(self, file: Path) -> None:
        super().__init__(json.loads(line) for line in (file.read_text().splitlines() if file.exists() else ()))
        self.file = file

    def of(self, name: str, epsilon: float | None, clip: float, seed: int) -> dict[str, Any]:
        key = f"{name}|{epsilon}|{clip}|{seed}"
        if key not in self:
            self[key] = played(name, epsilon, clip, seed)
            with self.file.open("a") as lines:
                lines.write(json.dumps([key, self[key]]) + "\n")
        return self[key]

    def write_csv(self, path: Path) -> None:
        """All runs, those of the tuning seed first."""
        names = ("rule", "epsilon", "clip", "seed")
        rows = [dict(zip(names, key.split("|"), strict=True)) | found for key, found in self.items()]
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            table.writeheader()
            table.writerows(sorted(rows, key=lambda row: (row["seed"] != str(TUNING), float(row["epsilon"]))))

    def clip(self, name: str) -> float:
        """The clip with the best accuracy on the tuning seed."""
        return max(CLIPS, key=lambda clip: self.of(name, FIRST, clip, TUNING)["accuracy"])


def report(store: Store, epsilons: Sequence[float]) -> None:
    """Accuracy of every rule at every ε, ε of frequent and rare clients, and differences to the last rule."""
    show = Console(width=130, highlight=False).print
    best, found = {name: store.clip(name) for name in RULES}, {}
    for ε in epsilons:
        runs = {(name, seed): store.of(name, ε, best[name], seed) for seed in SEEDS for name in RULES}
        found |= {(name, ε): [runs[name, seed] for seed in SEEDS] for name in RULES}
    table = Table(
        "ε", "rule", "clip", "accuracy", "of the rare half", "ε of the frequent tenth", "of the rare tenth"
    )
    for name, ε in sorted(found, key=lambda key: key[1]):
        runs = found[name, ε]
        right, own, often, seldom = (
            np.array([run[key] for run in runs]) for key in ("accuracy", "rare", "frequent_ε", "rare_ε")
        )
        cells = (f"{100 * x.mean():.1f} ± {100 * interval(x):.1f}" for x in (right, own))
        table.add_row(f"{ε:g}", name, f"{best[name]:g}", *cells, f"{often.mean():.2f}", f"{seldom.mean():.2f}")
    show(table)
    ahead = Table("ε", "the difference clipped, against", "points of accuracy, paired by seed")
    for name, ε in sorted(found, key=lambda key: key[1]):
        if name != RULES[-1]:
            gap = 100 * np.array(
                [a["accuracy"] - b["accuracy"] for a, b in zip(found[RULES[-1], ε], found[name, ε], strict=True)]
            )
            ahead.add_row(f"{ε:g}", name, f"{gap.mean():+.1f} ± {interval(gap):.1f}")
    show(ahead)


def interval(values: Any) -> float:
    """Half the width of a 95 % interval of the mean."""
    return float(T95 * values.std(ddof=1) / np.sqrt(len(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("privacy.jsonl"))
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    store = Store(asked.store)
    report(store, asked.epsilons)
    if asked.csv:
        store.write_csv(asked.csv)


if __name__ == "__main__":
    main()

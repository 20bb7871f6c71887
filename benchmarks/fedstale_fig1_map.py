"""Which β of FedStale is nearest to the optimum, over random pairs of quadratics and learning rates.

    python benchmarks/fedstale_fig1_map.py [--out FOLDER]

FedStale's Figure 1 shows one pair of 2-D quadratics. Here are many: p = (1, 0.01), five local steps, start at
(-10, -10) as in the paper. Pairs do not interact, so one run has all of them, as blocks of one large quadratic.
Writes fedstale-fig1-map.csv, one row per rate and round, and a picture; prints the table.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import fedstale as fs
from fedstale.core import Floats
from fedstale.view.plots.palette import look

PAIRS, SEEDS = 150, (1, 2, 3)
BETAS = (0.0, 0.5, 0.8, 1.0)
RATES = (0.0001, 0.00031623, 0.001, 0.0017783, 0.0031623)
ROUNDS = (1000, 2000, 4000)


def task(seed: int, pairs: int) -> fs.Quadratic:
    """Random pairs: optima in [-10, 10]², largest curvature in [0.5, 1], condition number from 1 to 10."""
    rng = np.random.default_rng(seed)
    centers = rng.uniform(-10, 10, (2, 2 * pairs))
    curvature = np.zeros((2, 2 * pairs, 2 * pairs))
    for client in range(2):
        for k in range(pairs):
            angle, top = rng.uniform(0, np.pi), rng.uniform(0.5, 1)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            block = slice(2 * k, 2 * k + 2)
            curvature[client, block, block] = turn @ np.diag([top, top / 10 ** rng.uniform(0, 1)]) @ turn.T
    return fs.Quadratic(centers, curvature, start=np.full(2 * pairs, -10.0))


def distances(problem: fs.Quadratic, beta: float, rate: float, seed: int, rounds: tuple[int, ...]) -> Floats:
    """(rounds, pairs) distance to the optimum of each pair."""
    engine, found = fs.engine("serial", problem, fs.Local(lr=rate, steps=5)), []
    who = fs.Bernoulli([1.0, 0.01])
    for s in fs.simulate(engine, fs.FedStale(beta=beta), who, rounds=max(rounds), seed=seed):
        if s.t in rounds:
            gaps = (s.params - problem.optimum()).reshape(-1, 2)
            found.append(np.linalg.norm(gaps, axis=1))
    return np.array(found)


def shares(pairs: int, rounds: tuple[int, ...], seeds: tuple[int, ...]) -> list[dict[str, float]]:
    """For every rate and round, in which share of the pairs each β has the least mean distance over the seeds."""
    problem, rows = task(0, pairs), []
    for rate in RATES:
        means = np.array([
            np.mean([distances(problem, beta, rate, seed, rounds) for seed in seeds], axis=0) for beta in BETAS
        ])  # (betas, rounds, pairs)  # fmt: skip
        for k, t in enumerate(rounds):
            best = np.bincount(means[:, k].argmin(axis=0), minlength=len(BETAS)) / pairs
            rows.append(
                {"lr": rate, "round": t} | {f"beta {b:g}": round(x, 4) for b, x in zip(BETAS, best, strict=True)}
            )
    return rows


def draw(rows: list[dict[str, float]], path: Path) -> None:
    """Stacked bars over the rates, a panel for each round."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    for place, t in zip(figure.subplots(1, len(ROUNDS), sharey=True), ROUNDS, strict=True):
        below = np.zeros(len(RATES))
        for k, beta in enumerate(BETAS):
            share = np.array([100 * row[f"beta {beta:g}"] for row in rows if row["round"] == t])
            place.bar(range(len(RATES)), share, bottom=below, color=look(k).colour, label=f"β = {beta:g}")
            below += share
        place.set_xticks(range(len(RATES)), [f"{rate:.2g}" for rate in RATES], fontsize=7)
        place.set(title=f"round {t}", xlabel="learning rate")
    figure.axes[0].set_ylabel("pairs in which it is nearest (%)")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle(f"The β nearest to the optimum, {PAIRS} random pairs of quadratics, p₁ / p₂ = 100", fontsize=10)
    figure.savefig(path, dpi=200, metadata={"Software": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "reproduction")
    out = parser.parse_args().out
    table = shares(PAIRS, ROUNDS, SEEDS)
    with (out / "fedstale-fig1-map.csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    draw(table, out / "fedstale-fig1-map.png")
    for row in table:
        print("  ".join(f"{key} {value:g}" for key, value in row.items()))

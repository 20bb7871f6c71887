"""CA-Fed beside AdaFed and Unbiased in the authors' released protocol: `python benchmarks/kept_momentum.py`.

The setting is that of `fedstale reproduce thesis-fig2.1-epochs`, with a training loop of its own: in the released
code (github.com/arodio/CA-Fed) every client keeps its momentum from round to round. The server there has the same
SGD as a client, with momentum 0.9 and weight decay 0.01. Three servers are tried:

    plain      no momentum and no decay; server rate 1 and client rate 0.01, as chosen in thesis-fig2.1-epochs
    released   that of the code, with the rates of its script for binary Synthetic (full_experiment.sh)
    one rate   that of the code, with CA-Fed's rates for all

A row for each panel, server, rule and seed: accuracy and objective, means over the last ten rounds, and how many
clients train. If momentum is not kept, the loop does what our own SGD does: tests/benchmarks/test_kept_momentum.py.
"""

import argparse
import csv
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedstale as fs
from fedstale.core import Array
from fedstale.tasks.split import WEIGHTS

MOMENTUM, DECAY, ROUNDS = 0.9, np.float32(0.01), 200
RULES: dict[str, fs.core.Strategy] = {
    "CA-Fed": fs.strategies.CAFed(), "AdaFed": fs.strategies.AdaFed(), "Unbiased": fs.strategies.Unbiased()
}  # fmt: skip
RATES = {  # of client and server
    "plain": {"CA-Fed": (0.01, 1.0), "AdaFed": (0.01, 1.0), "Unbiased": (0.01, 1.0)},
    "released": {"CA-Fed": (0.01, 0.3), "AdaFed": (0.001, 1.0), "Unbiased": (0.03, 0.03)},
    "one rate": {"CA-Fed": (0.01, 0.3), "AdaFed": (0.01, 0.3), "Unbiased": (0.01, 0.3)},
}


def sgd(kept: bool) -> Callable[..., float]:
    """The released clients' SGD on a linear model; its weight decay is the ridge, also in the loss at the start."""

    def train(model: torch.nn.Module, data: Any, context: Any) -> float:
        w, b = (p.detach().numpy() for p in model.parameters())
        state, start = context.state if kept else {}, []
        v, u = state.setdefault("momentum", [np.zeros_like(w), np.zeros_like(b)])
        for x, y in ((x.numpy(), y.numpy()) for x, y in data.batches()):
            logits, rows = x @ w.T + b, np.arange(len(y))
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            start = start or [DECAY / 2 * (np.vdot(w, w) + b @ b) - np.log(p[rows, y]).mean()]
            p[rows, y] -= 1
            p /= len(y)
            v[:], u[:] = MOMENTUM * v + p.T @ x + DECAY * w, MOMENTUM * u + p.sum(axis=0) + DECAY * b
            w -= context.rate * v
            b -= context.rate * u
        return float(start[0])

    return train


@fs.part
class Released:
    """The released server: v ← momentum · v + step - decay · w; change = lr · v."""

    lr: float

    def init(self, d: int) -> Array:
        return np.zeros(d, np.float32)

    def apply(self, v: Array, params: Array, step: Array) -> tuple[Array, Array]:
        v = np.float32(MOMENTUM) * v + step - DECAY * params
        return np.float32(self.lr) * v, v


def make_task(iid: bool, clients: int = 100) -> fs.core.Task:
    """The data of the figure."""
    weights, ridge = WEIGHTS["per-sample"], float(DECAY)
    return fs.synthetic(clients, 0.5, 0.5, seed=0, iid=iid, max_samples=500, weights=weights, ridge=ridge)


def row(task: fs.core.Task, server: str, rule: str, seed: int) -> dict[str, float]:
    """The rates of a run, and what it ends with."""
    (lr, rate), who = RATES[server][rule], fs.participation.MarkovClasses()
    engine = fs.Serial(task, fs.Local(lr=lr, epochs=2, batch=32, drop_last=True, train=sgd(kept=True)))
    step = fs.servers.Sgd(rate) if server == "plain" else Released(rate)
    run = [*fs.simulate(engine, RULES[rule], who, rounds=ROUNDS, seed=seed, server=step)]
    last = [fs.evaluate(task, s) for s in run[-10:]]
    means = {key: np.mean([scores[key] for scores in last]) for key in ("accuracy", "objective")}
    means["included"] = np.mean([len(s.clients) for s in run])
    return {"lr": lr, "server.lr": rate} | {key: round(float(value), 5) for key, value in means.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[46, 47, 48])
    parser.add_argument("--servers", nargs="+", choices=[*RATES], default=[*RATES])
    parser.add_argument("--out", type=Path, default=Path("thesis-fig2.1-kept.csv"))
    asked, table = parser.parse_args(), []
    for server, panel in itertools.product(asked.servers, ("Synthetic", "Synthetic, own models")):
        task = make_task(iid=panel == "Synthetic")
        for rule, seed in itertools.product(RULES, asked.seeds):
            about = {"server": server, "panel": panel, "algorithm": rule, "seed": seed}
            table.append(about | row(task, server, rule, seed))
            print(*table[-1].values(), flush=True)
    with asked.out.open("w", newline="") as f:
        writer = csv.DictWriter(f, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)

"""Bias and noise of a step: `python benchmarks/bias.py`.

Digits, 24 clients, half of them with p_min. A run is stopped now and then; everybody trains from where it is,
and the strategy aggregates the updates of those who come, in 1000 draws from the same state. Against Σ a_i Δ_i,
the step that needs everybody: how far the mean of the draws is (bias), and how far a draw is from their mean
(noise), both as a share of its norm. The bias is freed of what is left of the noise in a mean of so many draws.
"""

import copy

import numpy as np
from rich.console import Console
from rich.table import Table

from fedstale.core import Job, Local, Round
from fedstale.core.rng import stream
from fedstale.data import Shards, federate, load
from fedstale.engines.batched.engine import Batched
from fedstale.participation import TwoGroups
from fedstale.registry import RECIPES
from fedstale.simulate import simulate
from fedstale.tasks.images import image_task
from fedstale.tasks.models import Linear

RULES = ("fedavg", "unbiased", "fedstale", "fedvarp", "auto-unbiased", "auto", "mifa")
ROUNDS = (10, 50, 200)
DRAWS = 1000


def measured(name: str, p_min: float) -> list[tuple[float, float]]:
    """(bias, noise) after each of ROUNDS."""
    task, local, who = (
        image_task(federate(load("digits"), Shards(2), 24, seed=0), Linear()),
        Local(0.1),
        TwoGroups(p_min),
    )
    engine, strategy, found = Batched(task, local), RECIPES[name].strategy, []
    for s in simulate(engine, strategy, who, rounds=max(ROUNDS), seed=1):
        if s.t not in ROUNDS:
            continue
        reply = engine.train([Job(s.params, np.arange(task.n), 1, s.t + 1, local)])[0]
        full, rows, steps = (
            task.weights.astype(np.float64) @ reply.updates,
            who.rows(task.n, stream(2, "draws", s.t)),
            [],
        )
        for _ in range(DRAWS):
            S = np.flatnonzero(next(rows))
            r = Round(s.t + 1, s.params, S, reply.updates[S], np.ones((len(S), 1), np.bool_), reply.losses[S],
                      task.weights, who.probs(task.n))  # fmt: skip
            steps.append(strategy.aggregate(copy.deepcopy(s.checkpoint.state), r)[0].astype(np.float64))
        mean, norm = np.mean(steps, axis=0), np.linalg.norm(full)
        noise = float(np.mean([np.sum((step - mean) ** 2) for step in steps]))
        bias = max(0.0, float(np.sum((mean - full) ** 2)) - noise / DRAWS)
        found.append((bias**0.5 / norm, noise**0.5 / norm))
    return found


def main() -> None:
    for p_min in (0.2, 0.05):
        table = Table("rule", *(f"{what}, round {t}" for t in ROUNDS for what in ("bias", "noise")))
        table.title = f"p_min = {p_min}: share of the norm of the full step"
        for name in RULES:
            table.add_row(name, *(f"{value:.0%}" for pair in measured(name, p_min) for value in pair))
        Console(width=116, highlight=False).print(table)


if __name__ == "__main__":
    main()

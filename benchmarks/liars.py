"""Attacks on a training, with and without the defence: `python benchmarks/liars.py [FIRST SEED] [SEEDS] [SETTING]`.

10 clients train an MLP on handwritten digits, Dirichlet(0.5), for 80 rounds. Half of them take part always and half
in one round out of ten; the server estimates how often. One or three of them lie from round 1 on. The table has the
accuracy after the last round, a mean over seeds, the largest loss of a seed against the same seed undisturbed, and
the share of honest updates that were refused. Other settings follow; `quickstart` is that of
examples/flower-quickstart, where the clients that are rare hold the digits 5 to 9 and the others 0 to 4.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedstale as fs
from fedstale.lab.build import make_task

ROUNDS, GROUPS = 80, {"frequent": (0, 1, 2), "rare": (9, 8, 7)}
RULES: dict[str, fs.core.Strategy] = {
    "fedavg": fs.FedAvg(), "fedstale": fs.FedStale(beta=0.5), "auto": fs.recipe("auto").strategy,
    "trimmed mean": fs.strategies.TrimmedMean(trim=0.3),
    "trimmed memory": fs.strategies.TrimmedMean(trim=0.3, stale=True),
}  # fmt: skip
LIES = {"zeros": 0.0, "× 1e4": 1e4, "flip × 1": -1.0, "flip × 15": -15.0}
ATTACKS: dict[str, fs.defence.Liars | None] = {"none": None} | {
    f"{lie}, {count} {name}": fs.defence.Liars(clients[:count], factor)
    for lie, factor in LIES.items() for count in (1, 3) for name, clients in GROUPS.items()
}  # fmt: skip
SETTINGS: dict[str, tuple[dict[str, Any], str, fs.Local, fs.core.Participation, int]] = {
    "dirichlet": ({"clients": 10, "partition": {"kind": "dirichlet", "alpha": 0.5}}, "mlp",
                  fs.Local(lr=0.05, steps=5, batch=32), fs.TwoGroups(p_min=0.1), ROUNDS),
    "iid": ({"clients": 10, "partition": "iid"}, "mlp",
            fs.Local(lr=0.05, steps=5, batch=32), fs.TwoGroups(p_min=0.1), ROUNDS),
    "demo": ({"clients": 24, "partition": {"kind": "majority", "others": 0.1}}, "linear",
             fs.Local(lr=0.02, steps=5, batch=32), fs.TwoGroups(p_min=0.05), 400),
    "two labels": ({"clients": 10, "partition": {"kind": "shards", "per_client": 2}}, "mlp",
                   fs.Local(lr=0.05, steps=5, batch=32), fs.TwoGroups(p_min=0.1), 200),
    "quickstart": ({}, "", fs.Local(lr=0.05, steps=5, batch=32, momentum=0.9), fs.TwoGroups(p_min=0.1), 60),
}  # fmt: skip

SOME = ["none", *(f"{lie}, 3 {name}" for name in GROUPS for lie in ("zeros", "flip × 1"))]
OTHERS = {"quickstart": [*ATTACKS], "iid": SOME, "demo": ["none"], "two labels": SOME}


class Result(NamedTuple):
    """What came of a run."""

    accuracy: float  # 0 if it diverged
    refused: float  # share of the updates of honest clients


def task(setting: str) -> fs.core.Task:
    """The digits, divided as this setting says."""
    data, model, *_ = SETTINGS[setting]
    if setting == "quickstart":
        sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "flower-quickstart"))
        from quickstart import task as app

        samples = fs.tasks.Split.joined([app.load_data(k, 10).tensors for k in range(10)])  # type: ignore[misc]
        return fs.Supervised(
            app.Net, samples, None, central_test=app.samples(test=True), weights=lambda m: m / m.sum()
        )
    rest = {"dataset": "digits", "seed": 0, "swap": None, "fraction": 1.0, "test_share": 0.2}
    return make_task(rest | {"weights": "per-client"} | data, {"kind": model, "ridge": 0.0}, "cpu")


def play(
    setting: str, rule: fs.core.Strategy, attacks: Sequence[tuple[fs.defence.Liars | None, bool, int]]
) -> list[Result]:
    """The results of runs in step: each with its liars, whether it is defended, and its seed."""
    _, _, local, participation, rounds = SETTINGS[setting]
    engine = fs.engine("batched", task(setting), local)
    plays = [
        fs.play(fs.Run(engine, rule, participation, rounds, seed, estimator=fs.Intervals(),
                       defence=fs.defence.Defence() if defended else None, liars=liars))
        for liars, defended, seed in attacks
    ]  # fmt: skip
    heard, refused, params = np.zeros(len(plays)), np.zeros(len(plays)), {}
    for snapshots in fs.together(engine, plays):
        for k, s in snapshots.items():
            params[k] = None if isinstance(s, fs.Diverged) else s.params
            if not isinstance(s, fs.Diverged):
                liars = attacks[k][0]
                lying = liars.clients if liars else ()
                heard[k] += np.count_nonzero(~np.isin(s.clients, lying))
                refused[k] += np.count_nonzero(~np.isin(s.refused, lying))
    score = [0.0 if p is None else engine.task.evaluate(p)["accuracy"] for _, p in sorted(params.items())]
    return [Result(x, r / max(h + r, 1)) for x, h, r in zip(score, heard, refused, strict=True)]


def table(setting: str, rules: Sequence[str], attacks: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """Lines of Markdown: a row for each rule and attack."""
    lines = ["| rule | attack | undefended | defended | most lost | honest refused |", "|---|---|---|---|---|---|"]
    for rule in rules:
        cases = [(name, defended, seed) for name in attacks for defended in (False, True) for seed in seeds]
        found = play(setting, RULES[rule], [(ATTACKS[name], defended, seed) for name, defended, seed in cases])
        by = dict(zip(cases, found, strict=True))
        for name in attacks:
            without, with_ = ([by[name, x, seed].accuracy for seed in seeds] for x in (False, True))
            lost = max(by["none", False, s].accuracy - by[name, True, s].accuracy for s in seeds)
            refused = np.mean([by[name, True, seed].refused for seed in seeds])
            means = f"{np.mean(without):.3f} | {np.mean(with_):.3f} | {100 * lost:.1f} points"
            lines.append(f"| {rule} | {name} | {means} | {100 * refused:.2f} % |")
    return lines


def main(first: str = "401", count: str = "5", *chosen: str) -> None:
    """Print the table of all attacks, and those of other settings, or of the chosen ones only."""
    seeds = range(int(first), int(first) + int(count))
    print(f"seeds {seeds[0]} to {seeds[-1]}")
    for setting in chosen or SETTINGS:
        rules, attacks = [*RULES][: 3 if setting in OTHERS else None], OTHERS.get(setting, [*ATTACKS])
        print("", setting, *table(setting, rules, attacks, seeds), sep="\n", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

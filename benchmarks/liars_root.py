"""The defence with and without root data: `python benchmarks/liars_root.py [FIRST SEED] [SEEDS] [SETTING …]`.

The attacks and settings of liars.py, and clients that train on wrong labels (9 - y); the rule is `auto`. In
`quickstart` the server has five samples of each digit, which are taken out of the test samples; elsewhere it has
copies of 50 training samples. Accuracy is the mean over the last ten rounds. `±` is the standard error of the
difference between the same seeds. Finished runs are kept in liars_root.jsonl: a command that was stopped goes on.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from liars import ATTACKS, GROUPS, RULES, SETTINGS, SOME, task

import fedstale as fs

WRONG = {f"wrong labels, {m} {name}": clients[:m] for m in (1, 3) for name, clients in GROUPS.items()}
ROWS = {"quickstart": [*ATTACKS, *WRONG], "dirichlet": [*ATTACKS, *WRONG], "demo": ["none"]}
LAST, TOGETHER, PER_LABEL = 10, 24, 5
DONE = Path("liars_root.jsonl")


class Case(NamedTuple):
    """A run of the table."""

    setting: str
    attack: str
    root: bool
    seed: int


def served(setting: str, wrong: tuple[int, ...]) -> tuple[fs.Supervised, fs.defence.Defence]:
    """The task with wrong labels at some clients, and the defence with root data."""
    made = task(setting)
    assert isinstance(made, fs.Supervised)
    assert isinstance(made.train, fs.tasks.Split)
    y, cuts = made.train.y.clone(), made.train.offsets
    for k in wrong:
        y[cuts[k] : cuts[k + 1]] = 9 - y[cuts[k] : cuts[k + 1]]
    if setting != "quickstart":
        defence = fs.defence.Defence(root=made.root(10 * PER_LABEL))  # before labels are wrong
        made.train = made.train._replace(y=y)
        return made, defence
    from quickstart import task as app

    tx, ty = app.samples(test=True)
    order = np.random.default_rng(1)
    rows = [order.permutation(np.flatnonzero(ty.numpy() == c))[:PER_LABEL] for c in range(10)]
    mine, rest = np.concatenate(rows), np.setdiff1d(np.arange(len(ty)), rows)
    split = fs.tasks.Split.of(made.train.x, y, cuts)
    made = fs.Supervised(app.Net, split, None, central_test=(tx[rest], ty[rest]), weights=lambda m: m / m.sum())
    return made, fs.defence.Defence(root=fs.tasks.Root(app.Net, tx[mine], ty[mine]))


def play(cases: Sequence[Case]) -> list[list[float]]:
    """Of each run its accuracy, that of the last round, and the shares of honest updates and of lies refused."""
    setting, attack, _, _ = cases[0]
    _, _, local, participation, rounds = SETTINGS[setting]
    made, rooted = served(setting, WRONG.get(attack, ()))
    engine, judges = fs.engine("batched", made, local), (fs.defence.Defence(), rooted)
    lying = [liars.clients if (liars := ATTACKS.get(c.attack)) else WRONG.get(c.attack, ()) for c in cases]
    plays = [
        fs.play(fs.Run(engine, RULES["auto"], participation, rounds, c.seed, estimator=fs.Intervals(),
                       defence=judges[c.root], liars=ATTACKS.get(c.attack)))
        for c in cases
    ]  # fmt: skip
    counts, scores = np.zeros((len(cases), 4)), [[0.0] * LAST for _ in cases]
    for snapshots in fs.together(engine, plays):
        for k, s in snapshots.items():
            if isinstance(s, fs.Diverged):
                scores[k] = [0.0] * LAST
                continue
            for place, group in enumerate((s.clients, s.refused)):
                lies = np.count_nonzero(np.isin(group, lying[k]))
                counts[k, [place, 2 + place]] += len(group) - lies, lies
            if s.t > rounds - LAST:
                scores[k] = [*scores[k][1:], made.evaluate(s.params)["accuracy"]]
    shares = [(x[1] / max(x[:2].sum(), 1), x[3] / max(x[2:].sum(), 1)) for x in counts]
    return [[float(np.mean(v)), v[-1], *map(float, share)] for v, share in zip(scores, shares, strict=True)]


def results(setting: str, seeds: Sequence[int]) -> dict[Case, list[float]]:
    """Those of all runs of a setting: kept ones are read, the others are played."""
    lines = DONE.read_text().splitlines() if DONE.exists() else []
    done = {Case(*case): found for case, found in map(json.loads, lines)}
    rows = ROWS.get(setting, SOME)
    todo = [
        c
        for name in rows
        for root in (False, True)
        for s in seeds
        if (c := Case(setting, name, root, s)) not in done
    ]
    for wrong in dict.fromkeys(WRONG.get(c.attack, ()) for c in todo):
        mine = [c for c in todo if WRONG.get(c.attack, ()) == wrong]
        for part in (mine[k : k + TOGETHER] for k in range(0, len(mine), TOGETHER)):
            found = dict(zip(part, play(part), strict=True))
            with DONE.open("a") as file:
                file.writelines(json.dumps([c, x]) + "\n" for c, x in found.items())
            done |= found
    return done


def table(setting: str, seeds: Sequence[int]) -> list[str]:
    """Lines of Markdown: a row for each attack."""
    done = results(setting, seeds)
    lines = [
        "| attack | defended | with root data | difference | last round | honest refused | lies refused |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ROWS.get(setting, SOME):
        x = np.array(
            [[done[Case(setting, name, root, s)] for s in seeds] for root in (False, True)]
        )  # (2, seeds, 4)
        change, (old, new) = x[1, :, 0] - x[0, :, 0], x.mean(axis=1)
        error = change.std(ddof=1) / np.sqrt(len(seeds)) if len(seeds) > 1 else np.nan
        cells = [f"{old[0]:.3f} | {new[0]:.3f} | {100 * change.mean():+.1f} ± {100 * error:.1f}"]
        cells += [f"{old[1]:.3f} → {new[1]:.3f}", *(f"{100 * old[k]:.2f} → {100 * new[k]:.2f} %" for k in (2, 3))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main(first: str = "601", count: str = "6", *chosen: str) -> None:
    """Print the tables of the chosen settings, or of all."""
    torch.set_num_threads(1)
    seeds = range(int(first), int(first) + int(count))
    print(f"seeds {seeds[0]} to {seeds[-1]}")
    for setting in chosen or SETTINGS:
        print("", setting, *table(setting, seeds), sep="\n", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""How far the rules end behind the best one, for many participations: the table of docs/advise.md.

    python benchmarks/advice.py [--out FOLDER]

Every line is `fedstale advise … --simulate` on experiments/demo.toml. Writes docs/advice.csv and prints the
table. Lines with recorded phones need FEDSTALE_DATA.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent.parent
COLUMNS = ("auto", "mifa", "auto-unbiased", "fedvarp", "fedavg")
OTHERS = ("ca-fed", "amplified", "upga-pl")
HALVES = "[{}]".format(", ".join(["{0}"] * 12 + ["{1}"] * 12))
MLP = ("model.kind=mlp", "model.hidden=[32]", "local.lr=0.05")


class Line(NamedTuple):
    name: str
    changes: tuple[str, ...]
    rounds: int = 400


MARKOV = f'participation={{kind="markov", availability={HALVES.format(0.9, 0.1)}, eigenvalue=0.95}}'
CYCLIC = 'participation={{kind="cyclic", groups=4, on={}, off={}}}'
GRID = 'participation={kind="grid", grid="traces/flash723_30min.npz", clients=24}'
RECORDING = 'events="traces/flash300_events.csv.xz", variant="2_state", start=300.0'
EVENTS = f'participation={{kind="events", {RECORDING}, clients=24}}'
LOSS = f'channel={{kind="loss", up={HALVES.format(0.1, 0.9)}}}'
LINES = (
    Line("`two-groups`, p_min 0.05", ()),
    Line("`bernoulli`, p 0.1", ('participation={kind="bernoulli", p=0.1}',)),
    Line("`markov-classes`", ("participation=markov-classes",)),
    Line("`markov`, half 0.9, half 0.1, λ 0.95", (MARKOV,)),
    Line("`cyclic`, 4 groups, on 25, off 75", (CYCLIC.format(25, 75),)),
    Line("FLASH phones by the half-hour, `grid`, 24 clients", (GRID,)),
    Line("FLASH phones by ten minutes, `events`, 24 clients", (EVENTS,)),
    Line("`loss`, half of the clients lose 90 %, half 10 %", (LOSS, 'participation={kind="bernoulli", p=1.0}')),
    Line("with an MLP of 32 (lr 0.05): `two-groups`, p_min 0.05", MLP),
    Line("MLP: `markov-classes`", (*MLP, "participation=markov-classes")),
    Line("MLP: `markov`, half 0.9, half 0.1, λ 0.95", (*MLP, MARKOV)),
    Line("MLP: `cyclic` as above, 800 rounds", (*MLP, CYCLIC.format(25, 75)), 800),
    Line("MLP: `cyclic`, on 50, off 150, 800 rounds", (*MLP, CYCLIC.format(50, 150)), 800),
    Line("MLP: phones by the half-hour", (*MLP, GRID)),
    Line("MLP: phones by ten minutes", (*MLP, EVENTS)),
    Line("few rounds: `two-groups`, p_min 0.05, 50", (), 50),
    Line("few rounds: phones by the half-hour, 100", (GRID,), 100),
    Line("few rounds: `markov` as above, 60, data `iid`", (MARKOV, "data.partition=iid"), 60),
)


def behind(line: Line, out: str) -> dict[str, float]:
    """Rule → how much above the least objective its own is, as a share."""
    command = [str(Path(sys.executable).parent / "fedstale"), "advise", str(HERE / "experiments/demo.toml"),
               "--simulate", "--rounds", str(line.rounds), "--format", "json", "--out", out]  # fmt: skip
    for change in line.changes:
        command += ["-c", change]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {row["rule"]: row["behind"] for row in found["simulation"]["ranking"]}


def percent(share: float) -> str:
    return "0" if share < 5e-5 else f"{100 * share:.{1 if share < 0.0995 else 0}f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs", help="folder that keeps the runs")
    asked = parser.parse_args()
    with (HERE / "docs/advice.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("participation", "rounds", "rule", "behind"))
        for line in LINES:
            found = behind(line, asked.out)
            table.writerows((line.name, line.rounds, rule, f"{share:.6g}") for rule, share in found.items())
            file.flush()
            other = ", ".join(f"{rule} {percent(found[rule])}" for rule in OTHERS if rule in found)
            print(f"| {line.name} | {' | '.join(percent(found[rule]) for rule in COLUMNS)} | {other} |", flush=True)


if __name__ == "__main__":
    main()

"""Which clients CA-Fed leaves out, by groups of neighbours: `python benchmarks/left_out.py FIGURE.csv`.

    fedstale reproduce thesis-fig2.1 --out OUT
    python benchmarks/left_out.py OUT/thesis-fig2.1-laptop.csv --groups 4

Reads the runs behind the rows of a figure, which `fedstale reproduce` keeps beside it (else --runs FOLDER), and
prints one line per run and group of clients: how many of the group are there in a round, how many of those are left
out, how many of all are left out, absent ones too, and the round in which the group first comes. In Figures 2.1 and
2.4 of the thesis four groups are the classes: often there and correlated, often there, seldom there and correlated,
seldom there; in Figure 2.5 ten are the clusters. Rows whose run is not in the folder are skipped, and counted.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.lab.runs.store import RunFolder

ABOUT = ("panel", "warmup_rounds", "algorithm", "seed")


def counted(lines: Sequence[dict[str, Any]], clients: int, groups: int) -> Iterator[dict[str, float | None]]:
    """For each group its mean counts over the rounds of a run."""

    def members(line: dict[str, Any], *keys: str) -> Any:
        listed = np.array([i for key in keys for i in line.get(key, [])], np.int64)
        return np.bincount(listed * groups // clients, minlength=groups)

    there, out, all_out = (
        np.array([members(line, *keys) for line in lines])
        for keys in (("heard", "not_selected"), ("not_selected",), ("excluded",))
    )  # (rounds, groups)
    for g in range(groups):
        first = int(np.argmax(there[:, g] > 0)) + 1 if there[:, g].any() else None
        means = {"there": there, "left_out": out, "left_out_of_all": all_out}
        yield {"group": g} | {key: round(float(of[:, g].mean()), 4) for key, of in means.items()} | {"first": first}


def rows(figure: Path, runs: Path, groups: int) -> Iterator[dict[str, Any]]:
    """The counts of every run of the figure that decides about clients."""
    with figure.open() as f:
        table = list(csv.DictReader(f))
    missing = 0
    for row in table:
        run = RunFolder(runs / row["run"])
        missing += not run.finished
        lines = run.metrics() if run.finished else []
        if any("excluded" in line for line in lines):
            about = {key: row[key] for key in ABOUT if row.get(key)}
            yield from (about | found for found in counted(lines, run.config()["data"]["clients"], groups))
    print(f"{missing} of {len(table)} rows have no run in {runs}", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", type=Path)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--groups", type=int, default=4)
    asked = parser.parse_args()
    found = list(rows(asked.figure, asked.runs or asked.figure.parent / "runs", asked.groups))
    writer = csv.DictWriter(sys.stdout, list(found[0]) if found else ABOUT, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)

"""The tables of docs/benchmarks.md: `python benchmarks/report.py`, or `make bench-peers`.

It measures the workloads that docs/benchmark-rows.json lacks, or those that are named, one after the other, keeps
each as soon as it is done, and writes the tables between the marks of the page.
"""

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measure
import workloads

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- written by benchmarks/report.py -->\n", "<!-- end -->\n"
Rows = dict[str, Any]  # by workload: date, machine, source, rows


def measured(name: str, against: Sequence[str], repeat: int, peers: Path) -> Rows:
    """One workload, with the day, the machine and the version of the source."""
    rows = [row._asdict() for row in measure.compare([name], against, repeat, peers)]
    source = ["git", "-C", str(DOCS), "rev-parse", "--short", "HEAD"]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "source": subprocess.run(source, capture_output=True, text=True, check=False).stdout.strip(),
        "rows": [{key: _short(value) for key, value in row.items()} for row in rows],
    }


def machine() -> str:
    """Processor, cores and the libraries that compute."""
    names = [
        line.partition(":")[2].strip()
        for line in (Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else [])
        if line.startswith("model name")
    ]
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "numba"))
    return f"{len(names) or 1} × {names[0] if names else platform.machine()}, {libraries}"


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def tables(found: Mapping[str, Any]) -> str:
    """Ours and every contender's factors, one line for each workload, and where and when they were measured."""
    names = [
        c for c in measure.CONTENDERS if any(c == row["contender"] for w in found.values() for row in w["rows"])
    ]
    lines = [
        f"| workload | ms | CPU ms | % of peak | at peak | {' | '.join(names)} | besides training, ms | others |",
        "|---" * (7 + len(names)) + "|",
    ]
    for name, of in ((name, found[name]) for name in workloads.WORKLOADS if name in found):
        rows = {row["contender"]: row for row in of["rows"]}
        ours, loop = rows[measure.OURS], rows[measure.LOOP]
        cells = [f"{rows[c]['slower']:.2f} ({rows[c]['costlier']:.2f})" if c in rows else "" for c in names]
        share = round(100 * ours["peak"])
        most = f"{rows['naive']['slower'] / ours['peak']:.3g}" if ours["peak"] and "naive" in rows else ""
        others = max(row["others"] for row in of["rows"])
        lines.append(
            f"| `{name}`: {workloads.WORKLOADS[name].about} | {1000 * ours['seconds']:.4g} "
            f"| {1000 * ours['cpu']:.4g} | {share or ''} | {most} | {' | '.join(cells)} "
            f"| {1000 * loop['seconds']:.2g} | {others:.2f} |"
        )
    told = sorted({(of["date"], of["machine"], of["source"]) for of in found.values()})
    where = "".join(f"* {date}, {machine}, source {source}\n" for date, machine, source in told)
    return "\n".join(lines) + f"\n\nMeasured:\n\n{where}"


def write(page: Path, text: str) -> None:
    """Put the tables between the marks of the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.partition(END)[2])


def main(arguments: Sequence[str] | None = None, docs: Path = DOCS) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="", help="to measure, again if they are there; comma-separated")
    parser.add_argument("--against", default=",".join(measure.CONTENDERS))
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--peers", type=Path, default=Path(".cache/peers"))
    asked, file = parser.parse_args(arguments), docs / "benchmark-rows.json"
    found: Rows = json.loads(file.read_text()) if file.exists() else {}
    for name in (
        asked.workloads.split(",") if asked.workloads else [w for w in workloads.WORKLOADS if w not in found]
    ):
        found[name] = measured(name, asked.against.split(",") if asked.against else [], asked.repeat, asked.peers)
        file.write_text(json.dumps(found, indent=1) + "\n")
        for row in found[name]["rows"]:
            print(
                f"{name} {row['contender']}: {1000 * row['seconds']:.4g} ms, {row['slower']:.2f} × ours", flush=True
            )
    write(docs / "benchmarks.md", tables(found))


if __name__ == "__main__":
    main()

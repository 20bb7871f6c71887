"""`fedstale bench`: time a round of local training; the programs that measure are in benchmarks/ of a checkout."""

import importlib
import os
import platform
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstale.core import require
from fedstale.view.terminal.console import AsFormat, Format, print_json, print_table

CHECKOUT = Path(__file__).parents[3]


def bench(
    against: Annotated[
        str, typer.Option(help="Compare with naive, jax, fedjax, flower or pfl; comma-separated.")
    ] = "naive",
    workloads: Annotated[str, typer.Option(help="Workloads to measure, comma-separated; all if omitted.")] = "",
    repeat: Annotated[int, typer.Option(help="Measurements of each contender.", min=1)] = 5,
    peers: Annotated[
        Path, typer.Option(help="Environments of other frameworks, made by benchmarks/peers.sh.")
    ] = Path(".cache/peers"),
    format: AsFormat = Format.text,
) -> None:
    """Time a round of local training in our engines, in a plain loop and in other frameworks."""
    rows = []
    for row in measuring().compare(_names(workloads), _names(against), repeat, peers):
        typer.echo(f"{row.workload}: {row.contender} {1000 * row.seconds:.4g} ms", err=True)
        rows.append(row)
    if format is Format.json:
        about = {"date": time.strftime("%Y-%m-%d"), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
        print_json(about | {"rows": [row._asdict() for row in rows]})
    else:
        print_table([row.readable() for row in rows])


def measuring() -> Any:
    """The module benchmarks/measure.py, which is in a checkout and not in the installed package."""
    folders = [place / "benchmarks" for place in (CHECKOUT, Path.cwd())]
    folder = next((f for f in folders if (f / "measure.py").exists()), None)
    require(folder is not None, f"bench needs a checkout of fedstale with its folder benchmarks/, got {Path.cwd()}")
    sys.path.insert(0, str(folder))
    return importlib.import_module("measure")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]

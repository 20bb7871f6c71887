"""What the commands share: their common options, spelled and explained alike, and how they print.

Results go to standard output, progress and complaints to standard error.
"""

import json
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstale.core import require
from fedstale.lab.runs.store import finite

WIDTH = 120  # columns of a table that is printed into a file or a pipe

talk = Console(stderr=True)


class Format(StrEnum):
    """How a command prints its results."""

    text = "text"
    json = "json"


def out_option(help: str) -> Any:
    """The option `-o/--out`; `help` says what is written there."""
    return typer.Option("--out", "-o", help=help)


Config = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="Override one setting; may be given several times."),
]
Store = Annotated[Path, out_option("Folder that stores the runs.")]
AsFormat = Annotated[Format, typer.Option("--format", help="Print results as text or as JSON.")]
Seeds = Annotated[
    str | None, typer.Option("--seeds", help="Comma-separated seeds instead of the file's, such as 1,2,3.")
]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Number of processes, each with one thread.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue interrupted runs from their checkpoints.")]
Again = Annotated[bool, typer.Option("--again", help="Delete stored results and compute them again.")]
Weights = Annotated[
    str | None, typer.Option("--weights", help="Client weights a_i: 1,2,… or a file of numbers; equal if omitted.")
]
ClientsFirst = Annotated[
    bool, typer.Option("--clients-first", help="The trace has a row per client, not per round.")
]


def seeds_override(seeds: str | None) -> list[str]:
    """The option `--seeds` as an override of an experiment; empty if it was not given."""
    return [] if seeds is None else [f"seeds={parse_seeds(seeds)}"]


def parse_seeds(seeds: str) -> list[int]:
    """`1,2,3` as numbers."""
    ok = all(seed.strip().isdecimal() for seed in seeds.split(","))
    require(ok, f"--seeds must be whole numbers of at least 0, such as 1,2,3, got {seeds!r}")
    found = [int(seed) for seed in seeds.split(",")]
    require(len({*found}) == len(found), f"--seeds must differ from each other, got {seeds}")
    return found


def screen() -> Console:
    """Standard output, as wide as the terminal, or WIDTH columns where there is none."""
    found = Console()
    if not found.is_terminal:
        found.width = WIDTH
    return found


def command_line() -> str:
    """The command as it was typed, to be recorded with a run."""
    return shlex.join(["fedstale", *sys.argv[1:]])


def say(sentence: str, console: Console = talk, style: str | None = None) -> None:
    """Print a sentence on standard error, or another console, unless it is empty."""
    if sentence:
        console.print(sentence, style=style, markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a result on standard output as JSON; numbers that are not finite become null."""
    print(json.dumps(finite(value), indent=2, allow_nan=False, default=str))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], title: str, words: Collection[int]) -> Table:
    """Texts as a table; the columns `words` are aligned to the left, the others, of numbers, to the right."""
    out = Table(title=Text(title) if title else None, title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    for k, heading in enumerate(head):
        out.add_column(heading, justify="left" if k in words else "right")
    for row in rows:
        out.add_row(*map(Text, row))  # a label may have brackets, which are no markup
    return out


def print_table(rows: Sequence[Mapping[str, Any]], title: str = "", empty: str = "nothing yet") -> None:
    """Print rows of named values as a table; numbers are aligned to the right."""
    table = Table(title=Text(title) if title else None, title_justify="left", box=SIMPLE_HEAD)
    for key in rows[0] if rows else [empty]:
        number = bool(rows) and any(isinstance(row[key], int | float) for row in rows)
        whole = key == "name"  # it is copied into the next command
        table.add_column(
            key.replace("_", " "), overflow="fold", no_wrap=whole, justify="right" if number else "left"
        )
    for row in rows:
        table.add_row(*map(text_of, row.values()))
    screen().print(table, markup=False)


def text_of(value: Any) -> str:
    """A value in a cell of a table: four digits of a number, nothing for None."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)

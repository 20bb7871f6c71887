"""Options that several commands share, defined once so that they are spelled and explained alike."""

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


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


def seeds_override(seeds: str | None) -> list[str]:
    """The option `--seeds` as an override of an experiment; empty if it was not given."""
    return [f"seeds=[{seeds}]"] if seeds else []


def print_json(value: Any) -> None:
    """Print a result on standard output as JSON; numbers that are not finite become null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

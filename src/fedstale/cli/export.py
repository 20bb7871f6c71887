"""`fedstale export RUN --to FILE`: the trained model of a stored run as a file."""

from pathlib import Path
from typing import Annotated

import typer

from fedstale.cli.console import Store
from fedstale.cli.show import find
from fedstale.runs.models import export as write_model


def export(
    run: Annotated[str, typer.Argument(help="Name of a run or the beginning of it, or the run's folder.")],
    to: Annotated[Path, typer.Option("--to", help="File to write: .pt for PyTorch, or .safetensors.")],
    out: Store = Path("runs"),
) -> None:
    """Write the trained model of a run: its parameters and buffers by their names."""
    found = write_model(find(run, out), to)
    numbers = sum(values.size for values in found.values())
    print(f"{to}: {len(found)} arrays, {numbers} numbers")

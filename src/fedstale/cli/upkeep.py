"""`fedstale federation backup`, `restore`, `export`, `units`: what an operator does beside training."""

from pathlib import Path
from typing import Annotated

import typer

from fedstale.flower.federation import settings
from fedstale.flower.federation.ops.launcher import write_units
from fedstale.flower.federation.state.backup import copy_federation, read_model
from fedstale.lab.runs.models import check_ending, save

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]


def backup(folder: Folder, target: Annotated[Path, typer.Argument(help="A new folder for the copy.")]) -> None:
    """Copy a federation, also while it trains: settings, keys, roster, app, and the last committed round."""
    t = copy_federation(folder, target)
    print(f"{target}: round {t}; it holds private keys and clients' updates, keep it as safe as {folder}")


def restore(
    saved: Annotated[Path, typer.Argument(metavar="BACKUP", help="A folder that `backup` wrote.")], folder: Folder
) -> None:
    """Make a federation from a backup, in a new folder."""
    t = copy_federation(saved, folder)
    print(f"{folder}: round {t}; next: fedstale federation up {folder}")


def export(
    folder: Folder,
    to: Annotated[Path, typer.Option("--to", help="File to write: .pt for PyTorch, or .safetensors.")],
) -> None:
    """Write the model of the last committed round, by the names of its parameters; also while it trains."""
    check_ending(to)
    t, found = read_model(folder)
    save(found, to)
    print(f"{to}: round {t}, {len(found)} arrays, {sum(values.size for values in found.values())} numbers")


def units(
    folder: Folder,
    to: Annotated[Path | None, typer.Option("--to", help="Folder to write to; DIR/units if left out.")] = None,
    user: Annotated[str | None, typer.Option(help="Account that they run as; yours if left out.")] = None,
) -> None:
    """Write systemd units for the link, for training and for clients, with limits."""
    for file in write_units(settings.read(folder), to or folder / "units", user):
        print(file)

"""`fedstale new FOLDER`: a folder that runs at once, to be filled with data of one's own."""

from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstale.core import require


class Kind(StrEnum):
    """What a new folder is about."""

    csv = "csv"
    images = "images"
    text = "text"
    own_model = "own-model"
    flower = "flower"
    parts = "parts"


FIRST = {
    Kind.csv: "fedstale diagnose patients.csv presence.csv",
    Kind.flower: "flwr run . --federation-config num-supernodes=10 --stream",
    Kind.parts: "pip install -e . && fedstale run experiment.toml",
}  # what is typed next, where it is not `fedstale run`


def new(
    folder: Annotated[Path, typer.Argument(help="The folder to make; it must not exist, or be empty.")],
    kind: Annotated[Kind, typer.Option(help="What it is about.")] = Kind.csv,
) -> None:
    """Make a folder that runs at once: an experiment, its data, and a README of ten lines."""
    free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    require(free, f"{folder} must be a new or an empty folder, it has other things in it")
    copy(template(kind.value), folder)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {', '.join(names)}")
    print(f"next: cd {folder} && {FIRST.get(kind, 'fedstale run experiment.toml')}")


def template(name: str) -> Any:
    """The folder of a template."""
    return files("fedstale.cli") / "templates" / name


def copy(source: Any, folder: Path, name: str = "") -> None:
    """Write the files of a template, whose names end in .txt there, with `name` in the place of {name}."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        if entry.is_dir():
            copy(entry, folder / entry.name, name)
        else:
            text = entry.read_bytes()
            text = text.replace(b"{name}", name.encode()) if name else text
            (folder / entry.name.removesuffix(".txt")).write_bytes(text)

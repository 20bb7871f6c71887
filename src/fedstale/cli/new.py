"""`fedstale new FOLDER`: a folder that runs at once, to be filled with data of one's own."""

import csv
import random
from datetime import date, timedelta
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstale.core import require

HOSPITALS = (
    "Aachen", "Bonn", "Celle", "Dresden", "Essen", "Fulda", "Gera", "Halle", "Jena", "Kiel", "Mainz", "Ulm",
)  # fmt: skip
DAYS = 150


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
    if kind == Kind.csv:
        _write_example(folder)
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
            text = entry.read_text(encoding="utf-8")
            text = text.replace("{name}", name) if name else text
            (folder / entry.name.removesuffix(".txt")).write_text(text, encoding="utf-8")


def _write_example(folder: Path) -> None:
    """Two invented files: patients of twelve hospitals, and the days on which each came, every third one rarely."""
    draw = random.Random(1)
    rare = HOSPITALS[::3]
    with (folder / "patients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "age", "blood_pressure", "ward", "disease"])
        for hospital in HOSPITALS:
            for _ in range(120):
                old = hospital in rare  # their patients are older, and another ward is what counts
                age, pressure = draw.gauss(74 if old else 55, 8), draw.gauss(130, 15)
                ward = draw.choice(("geriatrics", "icu") if old else ("surgery", "icu"))
                risk = (pressure - 130) / 8 + 6 * (ward == "geriatrics") - 3 * old + draw.gauss(0, 1)
                writer.writerow([hospital, round(age), round(pressure), ward, "yes" if risk > 0 else "no"])
    with (folder / "presence.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "timestamp"])
        for day in range(DAYS):
            for hospital in HOSPITALS:
                if draw.random() < (0.05 if hospital in rare else 0.8):
                    when = date(2026, 1, 1) + timedelta(day)
                    writer.writerow([hospital, f"{when}T{draw.randrange(24):02}:{draw.randrange(60):02}"])

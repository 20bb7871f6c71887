"""`fedstale reproduce NAME`: a figure of a paper, the numbers behind it, and whether its claims came out."""

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedstale.cli.options import out_option
from fedstale.core import known
from fedstale.experiments.recorder import environment
from fedstale.papers import claims
from fedstale.papers import executors as workers
from fedstale.papers import figure as sweep
from fedstale.papers import rates as tuned
from fedstale.runs import store
from fedstale.runs.tables import write_csv

PAPERS = Path(__file__).parents[1] / "papers"  # the experiment files come with the package
talk = Console(stderr=True)


class Scale(StrEnum):
    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


class Picture(StrEnum):
    png = "png"
    pdf = "pdf"
    svg = "svg"


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Figure, see --list, or a TOML file that describes one.")
    ] = None,
    scale: Annotated[Scale, typer.Option(help="How much of the paper's setting.")] = Scale.laptop,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, each with one thread.")] = len(
        os.sched_getaffinity(0)
    ),
    executor: Annotated[
        workers.Executor, typer.Option(help="Who computes: processes here, or a Ray cluster.")
    ] = workers.Executor.processes,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with interrupted runs.")] = False,
    out: Annotated[Path, out_option("Folder for figure, numbers and claims.")] = Path("reproduction"),
    runs: Annotated[Path | None, typer.Option(help="Folder that keeps the runs; OUT/runs if left out.")] = None,
    figure_format: Annotated[Picture, typer.Option(help="Kind of picture.")] = Picture.png,
    list_: Annotated[bool, typer.Option("--list", help="All figures with their cost.")] = False,
) -> None:
    """Repeat a figure of a paper: train, tune, draw, and check the paper's claims."""
    if list_ or name is None:
        Console(width=None if sys.stdout.isatty() else 120).print(listing())
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, here and in the workers
    figure = sweep.read(find(name), scale)
    found, start = sweep.cells(figure), time.monotonic()
    count, rounds = sweep.cost(found)
    folder = store.open_store(runs or out / "runs")
    talk.print(
        f"{figure.name} at scale {scale}: {len(found)} cells, {count} runs, {rounds} rounds", highlight=False
    )
    command = shlex.join(["fedstale", *sys.argv[1:]])
    workers.compute(
        found, folder, jobs=jobs, resume=resume, command=command, executor=executor,
        say=lambda line: talk.print(line, highlight=False),
    )  # fmt: skip
    verdicts = write(figure, found, folder, out, figure_format.value)
    seconds = time.monotonic() - start
    record(figure, found, out, command, seconds)
    print(told(figure, verdicts))
    base = out / f"{figure.name}-{scale}"
    print(f"\n{seconds:.0f} s: {base}.{figure_format.value}, .csv, .json, -tuning.csv, -claims.csv, -claims.txt")


def find(name: str) -> Path:
    """The file of a figure: a path, or a name among the experiments."""
    if name.endswith(".toml"):
        return Path(name)
    files = figures()
    return files[known(name, files, "figure")]


def figures() -> dict[str, Path]:
    """All figure files, by name."""
    return {p.stem: p for p in sorted(PAPERS.glob("*.toml"))}


def listing() -> Table:
    table = Table(title="figures: runs × rounds at each scale", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("name", *sweep.SCALES, "what"):
        table.add_column(heading, no_wrap=heading == "name", justify="right" if heading in sweep.SCALES else "left")
    for name, path in figures().items():
        costs = [sweep.cost(sweep.cells(sweep.read(path, scale))) for scale in sweep.SCALES]
        told = [f"{count} × {short(rounds / count)}" for count, rounds in costs]
        table.add_row(name, *told, sweep.read(path, "paper").about["title"])
    return table


def short(number: float) -> str:
    return f"{number:.0f}" if number < 10_000 else f"{number / 1000:.0f} k"


def write(
    figure: sweep.Figure, found: Sequence[sweep.Cell], folder: Path, out: Path, suffix: str
) -> list[claims.Verdict]:
    """Picture, rows, tuning and claims, from the store alone: the same bytes however often it was interrupted."""
    out.mkdir(parents=True, exist_ok=True)
    base = f"{figure.name}-{figure.scale}"
    rows, choices = tuned.rows(figure, found, folder)
    verdicts = claims.judge(figure.about.get("claims", []), rows)
    write_csv(out / f"{base}.csv", rows)
    write_csv(out / f"{base}-tuning.csv", choices)
    write_csv(out / f"{base}-claims.csv", [v._asdict() for v in verdicts])
    store.write(out / f"{base}-claims.txt", lambda f: f.write((told(figure, verdicts) + "\n").encode()))
    if figure.about.get("curves"):
        write_csv(out / f"{base}-curves.csv", tuned.curves(rows, folder))
    draw(figure, rows, folder, out / f"{base}.{suffix}")
    return verdicts


def draw(figure: sweep.Figure, rows: Sequence[Mapping[str, Any]], folder: Path, path: Path) -> None:
    from fedstale.papers.draw import amplified, auto, fedstale, thesis, thesis_tables  # matplotlib is slow to load

    papers = {
        "fedstale": fedstale.DRAW,
        "thesis": thesis.DRAW | thesis_tables.DRAW,
        "amplified": amplified.DRAW,
        "auto": auto.DRAW,
    }
    drawings = papers[known(figure.about["paper"], papers, "figure.paper")]
    note = "" if figure.reduced.startswith("nothing") else figure.reduced
    drawings[known(figure.about["draw"], drawings, "figure.draw")](rows, folder, figure.about, note, path)


def record(figure: sweep.Figure, found: Sequence[sweep.Cell], out: Path, command: str, seconds: float) -> None:
    """What it took; a part of the time only, where runs were there already."""
    count, rounds = sweep.cost(found)
    about = {
        "figure": figure.name,
        "scale": figure.scale,
        "reduced": figure.reduced,
        "runs": count,
        "rounds": rounds,
    }
    store.write_json(
        out / f"{figure.name}-{figure.scale}.json", about | {"seconds": round(seconds, 1)} | environment(command)
    )


def told(figure: sweep.Figure, verdicts: Sequence[claims.Verdict]) -> str:
    """The claims as text."""
    lines = [
        figure.about["title"],
        f"scale {figure.scale}" + (f", reduced: {figure.reduced}" if figure.reduced else ""),
    ]
    if "says" in figure.about:
        lines.append(f"the paper: {figure.about['says']}")
    for v in verdicts:
        counts = f"{v.holds} hold, {v.noise} within noise, {v.fails} do not"
        lines.append(f"  {v.verdict.upper():<14} {v.claim}  ({counts}{'; ' + v.detail if v.detail else ''})")
    return "\n".join(lines)

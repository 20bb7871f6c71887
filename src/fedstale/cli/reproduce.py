"""`fedstale reproduce NAME`: a figure of a paper, the numbers behind it, and whether its claims came out."""

import os
import time
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedstale.core.system import cores
from fedstale.lab.executors import Executor, compute
from fedstale.lab.papers import results
from fedstale.lab.papers.figure import Scale, cells, figures, read
from fedstale.lab.plan import cost, every_run, planned, reported
from fedstale.lab.runs import store
from fedstale.view.terminal import console
from fedstale.view.terminal.runs import Log, On, how_chosen, logging


class Picture(StrEnum):
    """The file formats of a picture."""

    png = "png"
    pdf = "pdf"
    svg = "svg"


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A figure, see --list, or a TOML file that describes one.")
    ] = None,
    scale: Annotated[Scale, typer.Option(help="How much of the paper's setting to compute.")] = Scale.laptop,
    config: console.Config = None,
    seeds: console.Seeds = None,
    jobs: console.Jobs = cores(),
    executor: On = Executor.processes,
    resume: console.Resume = False,
    again: console.Again = False,
    out: Annotated[Path, console.out_option("Folder for figure, numbers and claims.")] = Path("reproduction"),
    runs: Annotated[Path | None, typer.Option(help="Folder that stores the runs (default: OUT/runs).")] = None,
    figure_format: Annotated[Picture, typer.Option(help="File format of the picture.")] = Picture.png,
    log: Log = None,
    list_: Annotated[bool, typer.Option("--list", help="List the figures and their cost.")] = False,
) -> None:
    """Repeat a figure of a paper: train, tune, draw, and check the paper's claims."""
    if list_ or name is None:
        console.print_table(listing(), "figures: runs × rounds at each scale")
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, here and in the workers
    figure = read(name, scale.value, [*(config or []), *console.seeds_override(seeds)])
    results.check(figure)
    start, command = time.monotonic(), console.command_line()
    folder = store.open_store(runs or out / "runs").resolve()  # workers on a cluster may be in another folder
    found = planned(cells(figure), folder)
    count, rounds = cost(found)
    size = f"{len(found)} cell{'s' * (len(found) != 1)}, {count} runs, {rounds} rounds"
    console.say(f"{figure.name} at scale {figure.scale}: {size}")
    train = partial(
        compute, jobs=jobs, resume=resume, command=command, say=console.say, executor=executor, again=again
    )
    with logging(log, every_run(found), out):
        if tuning := [cell.tuning for cell in found if cell.tuning]:
            train(tuning)
            found = [reported(cell) for cell in found]
        train(found)
    verdicts = results.write(figure, found, out, figure_format.value)
    seconds = time.monotonic() - start
    results.write_record(figure, found, out, command, seconds)
    print(results.text(figure, verdicts))
    if any(choice.tuned for choice in found[0].choices):
        print(f"rates are {how_chosen(found[0])}")
    base = out / results.stem(figure, found)
    print(f"\n{seconds:.0f} s: {base}.{figure_format.value}, .csv, .json, -tuning.csv, -claims.csv, -claims.txt")


def listing() -> list[dict[str, str]]:
    """The packaged figures with their cost at each scale."""
    rows = []
    for name in figures():
        at = {scale.value: read(name, scale.value) for scale in Scale}
        costs = {scale: cost(cells(figure)) for scale, figure in at.items()}
        short = {scale: f"{runs} × {_short(rounds / runs)}" for scale, (runs, rounds) in costs.items()}
        rows.append({"name": name, **short, "what": at[Scale.paper].about["title"]})
    return rows


def _short(number: float) -> str:
    return f"{number:.0f}" if number < 10_000 else f"{number / 1000:.0f} k"

"""`fedstale run EXPERIMENT`: train every algorithm of an experiment with every seed and compare them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedstale.lab import lineage, plan, schema
from fedstale.lab.build import find
from fedstale.lab.execute import Progress, Stop, ended, execute, require_resumable
from fedstale.lab.runs import store
from fedstale.simulate import Diverged
from fedstale.view.terminal import console
from fedstale.view.terminal.console import Again, AsFormat, Config, Format, Resume, Seeds, Store, say
from fedstale.view.terminal.runs import Log, follow, logging, write_and_print, write_and_print_sweep


def run(
    file: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="A TOML file, or a packaged name such as demo.")
    ],
    config: Config = None,
    out: Store = Path("runs"),
    seeds: Seeds = None,
    engine: Annotated[str | None, typer.Option(help="Engine instead of the file's, see `list engines`.")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN[@ROUND]", help="Start from where this run is."),
    ] = None,
    resume: Resume = False,
    again: Again = False,
    checkpoint: Annotated[float, typer.Option(min=0, help="Seconds between two checkpoints.")] = 10.0,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Keep the last checkpoint of finished runs.")
    ] = False,
    log: Log = None,
    format: AsFormat = Format.text,
) -> None:
    """Train every algorithm of an experiment with every seed and compare them.

    Finished runs are kept in the store and are not computed twice. With more rounds and --resume they go on.
    """
    overrides = [*(config or []), *console.seeds_override(seeds), *([f"engine={engine}"] if engine else [])]
    cells = plan.cells(schema.read_table(find(file), overrides))
    cells = plan.planned(cells, store.open_store(out))
    if start is not None:
        before = lineage.source(start, out)
        cells = [_forked(cell, *before) for cell in cells]
    if not (resume or again):
        require_resumable([p for p in plan.every_run(cells) if not ended(p)])
    compute = partial(execute, resume=resume, again=again, command=console.command_line(), stop=Stop(), say=say,
                      checkpoint_seconds=checkpoint, keep_checkpoints=keep_checkpoints)  # fmt: skip
    with logging(log, plan.every_run(cells), out):
        tuning = [cell.tuning for cell in cells if cell.tuning]
        reused = follow(_rounds(tuning, compute), plan.every_run(tuning), console.talk) if tuning else 0
        cells = [plan.reported(cell) for cell in cells]
        planned = [p for cell in cells for p in cell.runs]
        reused += follow(_rounds(cells, compute), planned, console.talk)
    if reused:
        say(f"{reused} of {len(plan.every_run(cells))} runs were stored already (--again computes them again).")
    if plan.is_sweep(cells):
        write_and_print_sweep(cells, overrides, out, format)
    else:
        write_and_print(cells[0].experiment, planned, overrides, out, format)


def _forked(cell: plan.Cell, before: store.RunFolder, t: int) -> plan.Cell:
    tuning = _forked(cell.tuning, before, t) if cell.tuning else None
    return cell._replace(runs=[lineage.forked(p, before, t) for p in cell.runs], tuning=tuning)


def _rounds(cells: Sequence[plan.Cell], compute: Callable[..., Iterator[Progress]]) -> Iterator[Progress]:
    """The rounds of all cells; where a run of a sweep diverges, the others go on."""
    for cell in cells:
        try:
            yield from compute(cell.experiment, cell.runs)
        except Diverged:
            if not plan.is_sweep(cells):
                raise

"""`fedstale report [RUNS…] -o page.html`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedstale.core import require
from fedstale.lab.runs.store import write


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs, of `run`, `reproduce` or `inspect`; `runs` if left out."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Its heading.")] = None,
    most: Annotated[int, typer.Option("--settings", min=1, help="Draw at most so many settings.")] = 6,
) -> None:
    """One HTML page of curves, tables and who took part; it needs no network."""
    from fedstale.lab.runs import named, query
    from fedstale.view.page import page, tables

    kinds = (".html", ".htm")
    require(out.suffix.lower() in kinds, f"--out must end in {' or '.join(kinds)}, got {out}")
    require(out.parent.is_dir(), f"there is no folder {out.parent} to put the page in")
    page.library()  # say now what is missing
    found = [named.find(place) for place in runs or [Path("runs")]]
    settings = query.settings(run for f in found for run in f.runs)
    traces = list(dict.fromkeys(path for f in found for path in f.traces))
    text = page.page(settings, traces, title or tables.heading(settings), most)
    write(out, lambda file: file.write(text.encode()))
    count = sum(len(g.runs) + len(g.broken) for s in settings for g in s.groups)
    size = os.path.getsize(out) / 1e6
    what = [f"{_many(count, 'run')} in {_many(len(settings), 'setting')}"] if settings else []
    what += [_many(len(traces), "recorded participation")] if traces else []
    print(f"{out}: {', '.join(what)}, {size:.1f} MB")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"

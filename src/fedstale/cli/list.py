"""`fedstale list [WHAT]`: every name that an experiment can use, or the stored runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedstale.core import known
from fedstale.lab.build import packaged
from fedstale.lab.runs import store
from fedstale.lab.runs.query import run_row
from fedstale.registry import TABLES
from fedstale.view.terminal.console import AsFormat, Format, Store, print_json, print_table

WIDE = ("engine", "megabytes", "hours")  # of runs: in JSON, and hours where there is a clock


def list_names(
    what: Annotated[
        str | None,
        typer.Argument(help="One list, such as `strategies` or `runs`, or a folder of runs; all names if omitted."),
    ] = None,
    out: Store = Path("runs"),
    format: AsFormat = Format.text,
) -> None:
    """List the names that an experiment can use (recipes, strategies, models, …), or the stored runs."""
    lists = [*TABLES, "experiments", "runs"]
    if what is not None and what not in lists and Path(what).is_dir():
        what, out = "runs", Path(what)
    if what is not None:
        known(what, dict.fromkeys(lists), "the list")
    if what == "runs":
        found = {what: [run_row(folder) for folder in store.runs(out)]}
    else:
        found = {name: name_rows(name) for name in ([what] if what else [*TABLES, "experiments"])}
    if format == Format.json:
        print_json(found)
        return
    for name, rows in found.items():
        timed = any(row.get("hours") for row in rows)
        told = [key for key in (rows[0] if rows else ()) if key not in WIDE or (key == "hours" and timed)]
        print_table([{key: row[key] for key in told} for row in rows], name)


def name_rows(what: str) -> list[dict[str, Any]]:
    """The rows of one list: name, settings with their defaults, one line of description."""
    if what == "experiments":  # that come with the package; the first line of a file says what it is
        lines = {name: path.read_text().partition("\n")[0].lstrip("# ") for name, path in packaged().items()}
        return [{"name": name, "what": line} for name, line in lines.items()]
    return [{"name": name, "settings": settings, "what": about} for name, settings, about in TABLES[what].rows()]

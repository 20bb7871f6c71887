"""`fedstale show RUN`: the configuration, environment and result of one stored run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstale.core import require
from fedstale.lab.runs import named, query
from fedstale.view.terminal.console import AsFormat, Format, Store, print_json, screen


def show(
    run: Annotated[str, typer.Argument(help="Name of a run or the beginning of it, or the run's folder.")],
    out: Store = Path("runs"),
    decisions: Annotated[
        Path | None,
        typer.Option("--decisions", help="Draw which clients were available and selected, to this file."),
    ] = None,
    format: AsFormat = Format.text,
) -> None:
    """Show the configuration, the environment and the result of one run."""
    folder = named.one(run, out)
    require(not folder.damage, folder.damage)
    if decisions:
        kinds = (".png", ".pdf", ".svg")
        require(decisions.suffix in kinds, f"--decisions must end in {', '.join(kinds)}, got {decisions}")
        from fedstale.view.plots.pictures import decisions as draw  # matplotlib is slow to load

        draw(folder, decisions)
    result, metrics = folder.result() if folder.finished else None, folder.metrics()
    config = folder.config()
    parts = {"config": config, "environment": folder.environment(), "result": result}
    if format == Format.json:
        print_json(parts | {"last": metrics[-1] if metrics else None})
        return
    state = "finished" if result else f"interrupted at round {len(metrics)} of {config.get('rounds')}"
    print(f"{folder.path.name}: {state}")
    if origin := query.origin(config, folder.environment()):
        print(origin)
    for title, part in parts.items():
        if part:
            screen().print(f"\n{title}", style="bold")
            print("\n".join(lines(part)))


def lines(part: Mapping[str, Any]) -> list[str]:
    """One line per key, the values aligned and readable."""
    width = max(map(len, part))
    return [f"  {key:{width}}  {query.in_words(value)}" for key, value in part.items()]

"""`fedstale watch [FOLDER]`: follow the runs of a store on the terminal, also over ssh."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live

from fedstale.lab.runs.named import store_of
from fedstale.lab.runs.status import duration
from fedstale.view.live.index import Index, Row
from fedstale.view.terminal.console import say, table

ROWS = 25  # of the table; the others are counted
SECONDS, PLAIN_SECONDS = 1.0, 10.0  # from one look to the next, on a terminal and elsewhere


def watch(
    folder: Annotated[Path, typer.Argument(help="A store of runs, or a folder of `reproduce`.")] = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="Print how things are and end.")] = False,
) -> None:
    """Follow runs that other processes compute: round, speed and time left; Ctrl-C ends it."""
    index, console = Index([store_of(folder.resolve())]), Console()
    index.scan()
    if once:
        console.print(picture(index.all()))
        return
    try:
        _follow(index, console)
    except KeyboardInterrupt:
        return


def _follow(index: Index, console: Console) -> None:
    if not console.is_terminal:
        while True:
            say(summary(index.all()), Console(width=200))
            time.sleep(PLAIN_SECONDS)
            index.scan()
    with Live(picture(index.all()), console=console, screen=False, auto_refresh=False) as live:
        while True:
            time.sleep(SECONDS)
            index.scan()
            live.update(picture(index.all()), refresh=True)


def summary(rows: Sequence[Row]) -> str:
    """One line: how many runs there are of each state, how many rounds are done, and how long it will take."""
    if not rows:
        return "no runs yet"
    states = Counter(row.state for row in rows)
    going = [row for row in rows if row.state == "running"]
    done, total = sum(row.round for row in going), sum(row.rounds for row in going)
    left = max((row.left for row in going if row.left is not None), default=None)
    parts = [f"{count} {state}" for state, count in states.items()]
    parts += [f"{done} of {total} rounds"] if going else []
    parts += [f"{duration(left)} left"] if left is not None else []
    return ", ".join(parts)


def picture(rows: Sequence[Row]) -> Group:
    """The summary, and a table of the running runs; of the latest ones where none is running."""
    going = [row for row in rows if row.state == "running"]
    latest = sorted(rows, key=lambda row: row.started, reverse=True)
    shown = sorted(going or latest, key=lambda row: -(row.left or 0.0))[:ROWS]
    head = ("algorithm", "seed", "state", "round", "rounds/s", "time left", "last 10 rounds")
    found = table(head, [r.texts() for r in shown], "", words=(0, 2))
    hidden = len(going or latest) - len(shown)
    more = f"and {hidden} more" if hidden else ""
    return Group(summary(rows), found, more) if rows else Group(summary(rows))

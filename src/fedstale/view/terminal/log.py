"""Options of commands that compute many runs: where, and the trackers that are told about them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from fedstale.lab.executors import Executor
from fedstale.lab.plan import Planned
from fedstale.view.trackers.follow import Tracker, following

Log = Annotated[
    list[Tracker] | None,
    typer.Option(
        "--log", metavar="TRACKER", help="Also log to tensorboard, wandb or mlflow, in OUT/logs; may be repeated."
    ),
]
On = Annotated[
    Executor, typer.Option("--executor", help="Where the runs are computed: processes here, or a Ray cluster.")
]


def logging(trackers: list[Tracker] | None, planned: Sequence[Planned], out: Path) -> AbstractContextManager[None]:
    """Log these runs while they are computed."""
    return following([p.folder for p in planned], trackers, out / "logs") if trackers else nullcontext()

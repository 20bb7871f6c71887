"""`fedstale export RUN --to FILE`: the trained model of a run, or the numbers of the runs of a folder."""

from pathlib import Path
from typing import Annotated

import typer

from fedstale.core import BadInput
from fedstale.lab.runs import frames, named
from fedstale.lab.runs.models import export as write_model
from fedstale.lab.runs.store import write_csv
from fedstale.view.terminal.console import Store
from fedstale.view.trackers.follow import Tracker, log_runs

TABLES = ("csv", "parquet")


def export(
    run: Annotated[
        str, typer.Argument(help="A run (its name, the beginning of it, or its folder), or a folder of runs.")
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", help="A file .pt or .safetensors for the model; csv, parquet or a tracker for numbers."
        ),
    ],
    out: Store = Path("runs"),
    into: Annotated[Path, typer.Option("--into", help="Folder for tables, or for the files of a tracker.")] = Path(
        "logs"
    ),
) -> None:
    """Write the model of a run as a file, or the numbers of runs as tables or for a tracker.

    `--to csv` and `--to parquet` write one table of runs and one of all their numbers; `--to tensorboard`, `wandb`
    and `mlflow` log every run of the folder.
    """
    if to in TABLES:
        _tables(Path(run), to, into)
    elif to in [t.value for t in Tracker]:
        print(f"{into}: {log_runs(run, to, into)} runs for {to}")
    else:
        found = write_model(named.one(run, out), Path(to))
        numbers = sum(values.size for values in found.values())
        print(f"{to}: {len(found)} arrays, {numbers} numbers")


def _tables(folder: Path, to: str, into: Path) -> None:
    rows = {"runs": frames.run_rows(folder), "metrics": frames.metric_rows(folder)}
    into.mkdir(parents=True, exist_ok=True)
    for name, table in rows.items():
        path = into / f"{name}.{to}"
        if to == "csv":
            write_csv(path, table)
        else:
            try:
                frames.texts(frames.frame(table)).to_parquet(path)
            except ImportError:
                raise BadInput("--to parquet needs pyarrow: pip install 'fedstale[parquet]'") from None
        print(f"{path}: {len(table)} rows")

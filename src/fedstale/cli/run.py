"""`fedstale run EXPERIMENT`: train every algorithm of an experiment with every seed and compare them."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedstale.cli.console import in_words, say, screen, talk
from fedstale.cli.options import AsFormat, Config, Format, Seeds, Store, print_json, seeds_override
from fedstale.cli.progress import follow
from fedstale.experiments import schema
from fedstale.experiments.execute import execute
from fedstale.experiments.interrupts import Stop
from fedstale.experiments.plan import Planned, by_label, digest, find, plan
from fedstale.runs import metrics, store
from fedstale.runs.metrics import WINDOWS
from fedstale.runs.statistics import spread
from fedstale.runs.tables import write_csv


def run(
    file: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="A TOML file, or a packaged name such as demo.")
    ],
    config: Config = None,
    out: Store = Path("runs"),
    seeds: Seeds = None,
    engine: Annotated[str | None, typer.Option(help="Engine instead of the file's, see `list engines`.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue interrupted runs from their checkpoints.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Delete stored results and compute them again.")] = False,
    checkpoint: Annotated[float, typer.Option(min=0, help="Seconds between two checkpoints.")] = 10.0,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Keep the last checkpoint of finished runs.")
    ] = False,
    format: AsFormat = Format.text,
) -> None:
    """Train every algorithm of an experiment with every seed and compare them.

    Finished runs are kept in the store and are not computed twice.
    """
    overrides = [*(config or []), *seeds_override(seeds), *([f"engine={engine}"] if engine else [])]
    experiment = schema.read(find(file), overrides)
    planned = plan(experiment, store.open_store(out))
    rounds = execute(experiment, planned, resume=resume, again=again, command=command_line(),
                     checkpoint_seconds=checkpoint, keep_checkpoints=keep_checkpoints,
                     stop=Stop(), say=say)  # fmt: skip
    reused = follow(rounds, planned, talk)
    if reused:
        say(f"{reused} of {len(planned)} runs were stored already (--again computes them again).")
    write_and_print(experiment, planned, overrides, out, format)


def write_and_print(
    experiment: schema.Experiment, planned: list[Planned], overrides: list[str], out: Path, format: Format
) -> None:
    """Write the picture and the CSV file of a comparison and print its table."""
    groups = {label: [p.folder for p in runs] for label, runs in by_label(planned).items()}
    rows = summary({label: [folder.result() for folder in folders] for label, folders in groups.items()})
    stem = f"{experiment.name}-{digest(planned)}" if overrides else experiment.name  # a variant has its own files
    figure, numbers = out / f"{stem}.png", out / f"{stem}.csv"
    changed = dict(change.split("=", 1) for change in overrides)
    write_csv(numbers, [changed | row for row in rows])

    from fedstale.plots.comparison import comparison  # matplotlib is slow to load

    comparison(groups, title(experiment), figure)
    if format == Format.json:
        names, files = [p.folder.path.name for p in planned], {"figure": str(figure), "numbers": str(numbers)}
        print_json({"table": rows, "runs": names, "overrides": changed} | files)
    else:
        screen().print(table(rows, title(experiment)))
        print(f"picture: {figure}\nnumbers: {numbers}\nruns:    {out}/  (fedstale list runs, fedstale show RUN)")


def title(e: schema.Experiment) -> str:
    """One line that says what is compared: the data, the participation and the number of seeds."""
    seeds = f"{len(e.seeds)} seed{'s' * (len(e.seeds) > 1)}"
    return f"{e.name}: {e.data['dataset']}, {e.data['clients']} clients, {in_words(e.participation)}, {seeds}"


def command_line() -> str:
    """The command as it was typed, to be recorded with a run."""
    return shlex.join(["fedstale", *sys.argv[1:]])


def summary(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row per algorithm: mean and standard deviation over the seeds of what the results hold."""
    rows = []
    for label, results in groups.items():
        row: dict[str, Any] = {"algorithm": label, "seeds": len(results)}
        for m in metrics.evaluated(*results):
            for which in WINDOWS:
                mean, std, _ = spread([result[m.name][which] for result in results])
                row |= {f"{m.name}_{which}": mean, f"{m.name}_{which}_std": std}
        row["rounds_per_second"] = spread([result["rounds_per_second"] for result in results]).mean
        rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The rows as a table: three views of the main metric, the final value of the others, and the speed."""
    found = metrics.shown([key.removesuffix("_final") for key in rows[0]])
    views = zip(found[:1] * 3, WINDOWS, ("final", "last 10", "best"), strict=False)
    columns = [*views, *((m, "final", m.name) for m in found[1:])]
    out = Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    out.caption = f"final, mean of the last 10 rounds and best {found[0].label}" if found else ""
    if rows[0]["seeds"] > 1:
        out.caption += f"; mean ± standard deviation over {rows[0]['seeds']} seeds"
    out.add_column("algorithm", no_wrap=True)
    for heading in [*(heading for *_, heading in columns), "rounds/s"]:
        out.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        keys = [f"{m.name}_{which}" for m, which, _ in columns]
        stds = [row[f"{key}_std"] if k < 3 and row["seeds"] > 1 else None for k, key in enumerate(keys)]
        cells = [m.text(row[key], std) for (m, *_), key, std in zip(columns, keys, stds, strict=True)]
        out.add_row(str(row["algorithm"]), *cells, f"{row['rounds_per_second']:.3g}")
    return out

"""`fedstale run EXPERIMENT`: train every algorithm of an experiment with every seed and compare them.

While runs are computed, their progress is a bar on a terminal and plain lines elsewhere.
"""

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from fedstale.cli import console
from fedstale.cli.console import Again, AsFormat, Config, Format, Resume, Seeds, Store, say
from fedstale.experiments import schema
from fedstale.experiments.execute import Progress, Stop, execute
from fedstale.experiments.plan import Planned, by_label, digest, find, plan, warmups
from fedstale.runs import metrics, store
from fedstale.runs.metrics import WINDOWS
from fedstale.runs.statistics import spread
from fedstale.runs.store import write_csv

PLAIN_SECONDS = 10.0  # from one plain line to the next
WARM_UP_SECONDS = 1.0  # time left is not estimated before rounds have been timed for this long
Clock = Callable[[], float]


def run(
    file: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="A TOML file, or a packaged name such as demo.")
    ],
    config: Config = None,
    out: Store = Path("runs"),
    seeds: Seeds = None,
    engine: Annotated[str | None, typer.Option(help="Engine instead of the file's, see `list engines`.")] = None,
    resume: Resume = False,
    again: Again = False,
    checkpoint: Annotated[float, typer.Option(min=0, help="Seconds between two checkpoints.")] = 10.0,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Keep the last checkpoint of finished runs.")
    ] = False,
    format: AsFormat = Format.text,
) -> None:
    """Train every algorithm of an experiment with every seed and compare them.

    Finished runs are kept in the store and are not computed twice.
    """
    overrides = [*(config or []), *console.seeds_override(seeds), *([f"engine={engine}"] if engine else [])]
    experiment = schema.read(find(file), overrides)
    planned = plan(experiment, store.open_store(out))
    rounds = execute(experiment, planned, resume=resume, again=again, command=command_line(),
                     checkpoint_seconds=checkpoint, keep_checkpoints=keep_checkpoints,
                     stop=Stop(), say=say)  # fmt: skip
    reused = follow(rounds, planned, console.talk)
    if reused:
        say(f"{reused} of {len(planned)} runs were stored already (--again computes them again).")
    write_and_print(experiment, planned, overrides, out, format)


def write_and_print(
    experiment: schema.Experiment, planned: list[Planned], overrides: list[str], out: Path, format: Format
) -> None:
    """Write the picture and the CSV file of a comparison and print its table."""
    rows, figure, numbers = write_files(experiment, planned, overrides, out)
    if format == Format.json:
        names, files = [p.folder.path.name for p in planned], {"figure": str(figure), "numbers": str(numbers)}
        console.print_json({"table": rows, "runs": names, "overrides": _changed(overrides)} | files)
    else:
        console.screen().print(table(rows, title(experiment)))
        print(f"picture: {figure}\nnumbers: {numbers}\nruns:    {out}/  (fedstale list runs, fedstale show RUN)")


def write_files(
    experiment: schema.Experiment, planned: list[Planned], overrides: list[str], out: Path
) -> tuple[list[dict[str, Any]], Path, Path]:
    """Write the picture and the CSV file of a comparison; returns its rows and the two files."""
    groups = {label: [p.folder for p in runs] for label, runs in by_label(planned).items()}
    rows = summary({label: [folder.result() for folder in folders] for label, folders in groups.items()})
    stem = f"{experiment.name}-{digest(planned)}" if overrides else experiment.name  # a variant has its own files
    figure, numbers = out / f"{stem}.png", out / f"{stem}.csv"
    write_csv(numbers, [_changed(overrides) | row for row in rows])

    from fedstale.plots.comparison import comparison  # matplotlib is slow to load

    comparison(groups, title(experiment), figure)
    return rows, figure, numbers


def _changed(overrides: Sequence[str]) -> dict[str, str]:
    return dict(change.split("=", 1) for change in overrides)


def title(e: schema.Experiment) -> str:
    """One line that says what is compared: the data, the participation and the number of seeds."""
    seeds = f"{len(e.seeds)} seed{'s' * (len(e.seeds) > 1)}"
    clients = f"{e.data['clients']} clients, {console.in_words(e.participation)}"
    return f"{e.name}: {e.data['dataset']}, {clients}, {seeds}"


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
    found = metrics.shown([key.removesuffix("_final") for key in rows[0] if key.endswith("_final")])
    views = zip(found[:1] * 3, WINDOWS, ("final", "last 10", "best"), strict=False)
    columns = [*views, *((m, "final", m.name) for m in found[1:])]
    out = Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, show_edge=False,
                padding=(0, 1, 0, 0))  # fmt: skip
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


def follow(
    rounds: Iterable[Progress], planned: Sequence[Planned], to: Console, clock: Clock = time.monotonic
) -> int:
    """Show rounds as they are computed; returns how many runs were found finished in the store."""
    unfinished = [p for p in warmups(planned) if not p.folder.finished]
    total = sum(p.config["rounds"] for p in (*planned, *unfinished))
    status, reused, said = _Status(total, clock), 0, clock()
    note = TextColumn("{task.description}", markup=False)
    with Bars(SpinnerColumn(), BarColumn(24), note, console=to, disable=not to.is_terminal) as bars:
        bar = bars.add_task("", total=total)
        for p in rounds:
            reused += p.reused
            line = status.line(p)
            bars.update(bar, completed=total - status.left, description=line)
            if p.result and not p.reused:
                say(f"{_name(p)}: {_result(p.result)}", to)
            elif not to.is_terminal and not p.reused and clock() - said >= PLAIN_SECONDS:
                said = clock()
                say(line, to)
    return reused


class _Status:
    """What is known about the runs in progress: rounds left, main metric, and speed.

    The first round is not timed, because it includes loading data and compiling.
    """

    def __init__(self, total: int, clock: Clock) -> None:
        self.left, self.clock, self.timed, self.since = total, clock, -1, 0.0
        self.begun: dict[str, tuple[int, float]] = {}  # run → the round and the time at which it was first seen
        self.values: dict[str, str] = {}  # run → its main metric when it was last evaluated

    def line(self, p: Progress) -> str:
        """Count a round; where its run is, without what is not known yet."""
        if p.reused:
            self.left -= p.planned.config["rounds"]
            return ""
        name, now = _name(p), self.clock()
        self.left -= 1 if name in self.begun else p.t  # a resumed run begins after round 1
        self.since, self.timed = self.since if self.begun else now, self.timed + 1
        first, then = self.begun.setdefault(name, (p.t, now))
        self.values[name] = _main(p.metrics) or self.values.get(name, "")
        speed = f"{(p.t - first) / (now - then):.3g} rounds/s" if p.t > first and now > then else ""
        clients = f"{p.metrics['participants']} clients" if "participants" in p.metrics else ""
        parts = (
            f"round {p.t}/{p.planned.config['rounds']}",
            self.values[name],
            clients,
            speed,
            self._time_left(now),
        )
        return f"{name}: {', '.join(filter(None, parts))}"

    def _time_left(self, now: float) -> str:
        if self.timed == 0 or now - self.since < WARM_UP_SECONDS:
            return ""
        seconds = self.left * (now - self.since) / self.timed
        return f"{seconds:.0f} s left" if seconds < 120 else f"{seconds / 60:.0f} min left"


def _name(p: Progress) -> str:
    return f"{p.planned.algorithm.label}, seed {p.planned.seed}"


def _main(line: Mapping[str, Any]) -> str:
    """The main metric of an evaluated round; nothing for other rounds."""
    return next((f"{m.name} {m.text(line[m.name])}" for m in metrics.shown(line)), "")


def _result(result: Mapping[str, Any]) -> str:
    values = [f"{m.name} {m.text(result[m.name]['final'])}" for m in metrics.shown(result)]
    refused = [f"{result['refused']} updates refused"] if result["refused"] else []
    return ", ".join([*values, f"{result['rounds_per_second']:.3g} rounds/s", *refused])

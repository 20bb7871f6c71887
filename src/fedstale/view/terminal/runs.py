"""Runs on the terminal: their progress, and the table, the picture and the CSV files of those that have finished.

Progress is a bar on a terminal and plain lines elsewhere. A sweep has a table of the best settings, all settings
and runs as CSV files, and a picture of each cell.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from fedstale.lab.execute import Progress, Stop, execute
from fedstale.lab.executors import Executor
from fedstale.lab.plan import Cell, Choice, Planned, by_label, chosen, digest, every_run, place, scores, warmups
from fedstale.lab.runs import metrics, query, verdict
from fedstale.lab.runs.metrics import WINDOWS
from fedstale.lab.runs.statistics import spread
from fedstale.lab.runs.status import duration
from fedstale.lab.runs.store import write_csv
from fedstale.lab.schema import Experiment
from fedstale.simulate import Interrupted
from fedstale.view.terminal import console
from fedstale.view.terminal.console import Format, say, talk
from fedstale.view.trackers.follow import Tracker, following

PLAIN_SECONDS = 10.0  # from one plain line to the next
WARM_UP_SECONDS = 1.0  # time left is not estimated before rounds have been timed for this long
Clock = Callable[[], float]
CHOSEN = "chosen on the seeds that are reported, which flatters them a little"
PICTURES = 12  # cells that are drawn, at most: a picture takes a second
Row = dict[str, Any]  # one algorithm, by column
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


def follow(
    rounds: Iterable[Progress], planned: Sequence[Planned], to: Console, clock: Clock = time.monotonic
) -> int:
    """Show rounds as they are computed; returns how many runs were found finished in the store."""
    unfinished = [p for p in warmups(planned) if not p.folder.finished]
    total = sum(p.config["rounds"] for p in (*planned, *unfinished))
    status, reused, said = _Status(total, clock), 0, clock()
    warned = set[tuple[str, str]]()
    note = TextColumn("{task.description}", markup=False)
    with Bars(SpinnerColumn(), BarColumn(24), note, console=to, disable=not to.is_terminal) as bars:
        bar = bars.add_task("", total=total)
        for p in rounds:
            reused += p.reused
            for kind, sentence in p.metrics.get("warnings", {}).items():
                if (p.planned.algorithm.label, kind) not in warned:  # once, not for every seed
                    warned.add((p.planned.algorithm.label, kind))
                    say(f"warning: {p.planned.title}: {sentence}", to)
            line = status.line(p)
            bars.update(bar, completed=total - status.left, description=line)
            if p.result and not p.reused:
                say(f"{p.planned.title}: {_result(p.result)}", to)
            elif not to.is_terminal and not p.reused and clock() - said >= PLAIN_SECONDS:
                said = clock()
                say(line, to)
    return reused


def simulate_rest(e: Experiment, planned: Sequence[Planned], command: str) -> None:
    """Compute the runs of an experiment that are not stored yet; the same command goes on after a stop."""
    try:
        with Stop() as stop:
            follow(execute(e, planned, resume=True, command=command, stop=stop, say=say), planned, talk)
    except Interrupted:
        say("fedstale: interrupted; the same command goes on from here")
        raise typer.Exit(130) from None


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
        if p.result:
            self.left -= p.planned.config["rounds"] - p.t  # a run that stopped early
        name, now = p.planned.title, self.clock()
        self.left -= 1 if name in self.begun else p.t  # a resumed run begins after round 1
        self.since, self.timed = self.since if self.begun else now, self.timed + 1
        first, then = self.begun.setdefault(name, (p.t, now))
        self.values[name] = _main(p) or self.values.get(name, "")
        speed = f"{(p.t - first) / (now - then):.3g} rounds/s" if p.t > first and now > then else ""
        clients = f"{p.metrics['participants']} clients" if "participants" in p.metrics else ""
        parts = (
            f"round {p.t}/{p.planned.config['rounds']}",
            f"{p.metrics['seconds'] / 3600:.3g} h of the clock" if "seconds" in p.metrics else "",
            self.values[name], clients, speed, self._time_left(now),
        )  # fmt: skip
        return f"{name}: {', '.join(filter(None, parts))}"

    def _time_left(self, now: float) -> str:
        if self.timed == 0 or now - self.since < WARM_UP_SECONDS:
            return ""
        seconds = self.left * (now - self.since) / self.timed
        return f"{duration(seconds)} left"


def _main(p: Progress) -> str:
    """The main metric of an evaluated round; nothing for other rounds."""
    found = metrics.shown(p.metrics, main=p.planned.config.get("main"))
    return next((f"{m.name} {m.text(p.metrics[m.name])}" for m in found), "")


def _result(result: Mapping[str, Any]) -> str:
    values = [f"{m.name} {m.text(result[m.name]['final'])}" for m in metrics.shown(result)]
    refused = [f"{result['refused']} updates refused"] if result["refused"] else []
    stopped = [f"stopped: {result['stopped']}"] if "stopped" in result else []
    return ", ".join([*values, f"{result['rounds_per_second']:.3g} rounds/s", *refused, *stopped])


def write_and_print(
    experiment: Experiment, planned: list[Planned], overrides: list[str], out: Path, format: Format
) -> None:
    """Write the picture and the CSV file of a comparison and print its table."""
    rows, figure, numbers = write_files(experiment, planned, overrides, out)
    if format == Format.json:
        names, files = [p.folder.path.name for p in planned], {"figure": str(figure), "numbers": str(numbers)}
        console.print_json({"table": rows, "runs": names, "overrides": changed(overrides)} | files)
    else:
        console.screen().print(table(rows, title(experiment)))
        print(f"picture: {figure}\nnumbers: {numbers}")
        print(f"runs:    {out}/  (fedstale list {out}, fedstale show RUN, fedstale ui {out})")


def write_files(
    experiment: Experiment, planned: list[Planned], overrides: list[str], out: Path
) -> tuple[list[Row], Path, Path]:
    """Write the picture and the CSV file of a comparison; returns its rows and the two files."""
    groups = {label: [p.folder for p in runs] for label, runs in by_label(planned).items()}
    rows = summary({label: [folder.result() for folder in folders] for label, folders in groups.items()})
    rows = to_target(rows, experiment, {label: [query.readable(f) for f in of] for label, of in groups.items()})
    base = stem(experiment, planned, overrides)
    figure, numbers = out / f"{base}.png", out / f"{base}.csv"
    write_csv(numbers, [changed(overrides) | row for row in rows])

    from fedstale.view.plots.pictures import comparison  # matplotlib is slow to load

    comparison(groups, title(experiment), figure)
    return rows, figure, numbers


def stem(experiment: Experiment, planned: Sequence[Planned], overrides: Sequence[str]) -> str:
    """The name of the files of an experiment without their ending; a variant has files of its own."""
    return f"{experiment.name}-{digest(planned)}" if overrides else experiment.name


def changed(overrides: Sequence[str]) -> dict[str, str]:
    """The overrides as columns of a CSV file."""
    return dict(change.split("=", 1) for change in overrides)


def title(e: Experiment, cells: int = 1) -> str:
    """One line that says what is compared: the data, the participation and the number of seeds."""
    if cells > 1:
        return f"{e.name}: the best settings in each of {cells} cells"
    seeds = f"{len(e.seeds)} seed{'s' * (len(e.seeds) > 1)}"
    clients = f"{e.data['clients']} clients, {query.in_words(e.participation)}"
    return f"{e.name}: {e.data['dataset']}, {clients}, {seeds}"


def summary(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Row]:
    """One row per algorithm: mean and standard deviation over the seeds of what the results hold."""
    rows = []
    for label, results in groups.items():
        row: Row = {"algorithm": label, "seeds": len(results)}
        for m in metrics.evaluated(*results):
            for which in WINDOWS:
                mean, std, _ = spread([result[m.name][which] for result in results])
                row |= {f"{m.name}_{which}": mean, f"{m.name}_{which}_std": std}
        speeds = [result["rounds_per_second"] for result in results if "rounds_per_second" in result]
        row["rounds_per_second"] = spread(speeds).mean if speeds else None
        row |= verdict.took(results)
        rows.append(row)
    return rows


def to_target(rows: Sequence[Row], e: Experiment, lines: Mapping[str, Sequence[Sequence[query.Line]]]) -> list[Row]:
    """The rows with the rounds to the target, and the main metric where the experiment names it."""
    read = {label: found for label, seeds in lines.items() if (found := [of for of in seeds if of])}
    asked = {key: value for key in ("target", "monitor", "main") if (value := getattr(e, key)) is not None}
    main, aim = {"main": e.main} if e.main else {}, verdict.target(asked, read)
    if aim is None:
        return [row | main for row in rows]
    told = main | {"target": aim.value, "target_metric": aim.metric.name, "target_origin": aim.origin}
    whens = {label: verdict.reached(seeds, aim).rounds for label, seeds in read.items()}
    never = verdict.When(None, 0.0, 0, 0)
    return [
        row | told | {"rounds_to_target": w.mean, "rounds_to_target_std": w.std, "reached_target": w.reached}
        for row in rows for w in [whens.get(str(row["algorithm"]), never)]
    ]  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]], title: str, settings: Sequence[str] = ()) -> Table:
    """The rows as a table: settings, three views of the main metric, the end of the others, and the speed."""
    names = dict.fromkeys(key.removesuffix("_final") for row in rows for key in row if key.endswith("_final"))
    found = metrics.shown(names, main=rows[0].get("main"))
    views = zip(found[:1] * 3, WINDOWS, ("final", "last 10", "best"), strict=False)
    columns = [*views, *((m, "final", m.name) for m in found[1:])]
    out = Table(title=Text(title), title_justify="left", caption_justify="left", box=SIMPLE_HEAD, show_edge=False,
                padding=(0, 1, 0, 0))  # fmt: skip
    out.caption = f"final, mean of the last 10 rounds and best {found[0].label}" if found else ""
    if rows[0]["seeds"] > 1:
        out.caption += f"; mean ± standard deviation over {rows[0]['seeds']} seeds"
    aim = _aim(rows)
    if aim and aim.origin:
        out.caption += f"; rounds to {aim.text}"
    timed = [key for key in ("hours", "megabytes") if all("hours" in row for row in rows)]
    if timed and any(row["never_heard"] for row in rows):
        most = max(row["never_heard"] for row in rows)
        out.caption += f"; {most} clients were never heard: for them no rule is unbiased"
    out.add_column("algorithm", no_wrap=True)
    goal = [f"to {aim.metric.text(aim.value)}"] if aim else []
    for heading in (*settings, *(heading for *_, heading in columns), *goal, *timed, "rounds/s"):
        out.add_column(heading, justify="right", no_wrap=heading not in settings)
    for row in rows:
        cells = ["" if row[key] is None else query.in_words(row[key]) for key in settings]
        for k, (m, which, _) in enumerate(columns):
            key = f"{m.name}_{which}"
            cells.append(
                m.text(row.get(key), row.get(f"{key}_std") if (k < 3 or m.own) and row["seeds"] > 1 else None)
            )
        if aim:
            when = (row["rounds_to_target"], row["rounds_to_target_std"], row["reached_target"], row["seeds"])
            cells.append(verdict.When(*when).text)
        late = timed and any(0 < r["stopped"] > row["stopped"] for r in rows)  # it did not reach the target
        cells += [f"{'>' * bool(late)}{row[key]:.3g}" for key in timed]
        speed = row["rounds_per_second"]
        cells = [query.label_in_words(str(row["algorithm"])), *cells, "–" if speed is None else f"{speed:.3g}"]
        out.add_row(*map(escape, cells))  # a label may have brackets, which are no markup
    return out


def _aim(rows: Sequence[Mapping[str, Any]]) -> verdict.Target | None:
    """The target of rows that tell how soon it was reached."""
    if not all("target" in row for row in rows):
        return None
    first = rows[0]
    return verdict.Target(metrics.metric(first["target_metric"]), first["target"], first["target_origin"])


def write_and_print_sweep(cells: Sequence[Cell], overrides: list[str], out: Path, format: Format) -> None:
    """Write the files of a sweep and print the settings that were chosen."""
    keys, every, tuning = varied(cells), every_run(cells), [cell.tuning for cell in cells if cell.tuning]
    rows = [row for cell in cells for row in setting_rows(cell, keys)]
    base, best = out / stem(cells[0].experiment, every, overrides), [row for row in rows if row["chosen"]]
    rows += [{**row, "tuning": True} for cell in tuning for row in setting_rows(cell, keys)]
    files = {"numbers": f"{base}.csv", "all_runs": f"{base}-runs.csv"}
    write_csv(Path(files["numbers"]), [changed(overrides) | row for row in rows])
    runs = [changed(overrides) | row for cell in [*tuning, *cells] for row in run_rows(cell, keys)]
    write_csv(Path(files["all_runs"]), runs)
    pictures = [_draw_cell(cell, base) for cell in cells[:PICTURES]]
    lost = [p.folder.path for p in every if not p.folder.finished]
    if lost:
        console.say(f"{len(lost)} of {len(every)} runs diverged; {lost[0]}/diverged.json says why", style="yellow")
    if format == Format.json:
        names = [p.folder.path.name for p in every]
        console.print_json({"table": best, "settings": rows, "runs": names, "figures": pictures, **files})
        return
    console.screen().print(table(best, title(cells[0].experiment, len(cells)), keys))
    if any(choice.tuned for choice in cells[0].choices):
        best_by = f"those with the best {metrics.metric(cells[0].by).label} are shown"
        print(f"of the settings in [tune] {best_by}, {how_chosen(cells[0])}")
        print("".join(f"{sentence}\n" for sentence in applied(cells[0].choices)), end="")
    print(f"pictures: {pictures[0]}{f' and {len(pictures) - 1} more' if len(pictures) > 1 else ''}")
    print(f"numbers:  {files['numbers']} (all settings), {files['all_runs']} (all runs)\nruns:     {out}/")


def how_chosen(cell: Cell) -> str:
    """On which seeds settings were chosen."""
    apart = "chosen on other seeds than those that are reported"
    return f"{apart}: {', '.join(map(str, cell.tuning.experiment.seeds))}" if cell.tuning else CHOSEN


def applied(choices: Sequence[Choice]) -> list[str]:
    """Of every key that is tuned for some of the algorithms only, which they are."""
    keys, found = dict.fromkeys(key for c in choices for key in c.tuned), []
    for key in keys:
        rules = dict.fromkeys(c.algorithm for c in choices if key in c.tuned)
        others = dict.fromkeys(c.algorithm for c in choices if c.algorithm not in rules)
        if others:
            rest = "have it from themselves" if len(others) > 1 else "has it from itself"
            rest = f"{', '.join(others)} {rest} or not at all"
            found.append(f"{key} is tuned for {', '.join(rules)}; {rest}")
    return found


def varied(cells: Sequence[Cell]) -> list[str]:
    """The names of all settings that the sweep varies."""
    tuned = [key for cell in cells for choice in cell.choices for key in choice.tuned]
    return list(dict.fromkeys([*(key for cell in cells for key in place(cell)), *tuned]))


def setting_rows(cell: Cell, keys: Sequence[str]) -> list[Row]:
    """A row for each algorithm at each setting, over its seeds; `chosen` marks the best of an algorithm."""
    groups, scored = by_label(cell.runs), scores(cell)
    best, rows = chosen(cell, scored), []
    for c in cell.choices:
        results = [p.folder.result() for p in groups[c.label] if p.folder.finished]
        row = summary({c.algorithm: results})[0]
        rows.append({"algorithm": row.pop("algorithm")} | _about(cell, c, keys) | {"chosen": c in best} | row)
    return rows


def _about(cell: Cell, c: Choice, keys: Sequence[str]) -> Row:
    """All settings that vary, in the same order in every row."""
    return dict.fromkeys(keys) | place(cell) | c.tuned


def run_rows(cell: Cell, keys: Sequence[str]) -> list[Row]:
    """A row for each run: its settings, its seed and its results; a diverged one has none."""
    choices, rows = {c.label: c for c in cell.choices}, []
    for p in cell.runs:
        c = choices[p.algorithm.label]
        about = {"algorithm": c.algorithm} | _about(cell, c, keys)
        result = query.flat(p.folder.result()) if p.folder.finished else {}
        rows.append({"run": p.folder.path.name} | about | {"seed": p.seed, "finished": p.folder.finished} | result)
    return rows


def _draw_cell(cell: Cell, base: Path) -> str:
    """The picture of the chosen settings of a cell, and its path."""
    from fedstale.view.plots.pictures import comparison  # matplotlib is slow to load

    best, groups = chosen(cell, scores(cell)), by_label(cell.runs)
    where = ", ".join(f"{key}={query.in_words(value)}" for key, value in place(cell).items())
    name = re.sub(r"[^\w.=]+", "-", where)[:80].strip("-")
    path = Path(f"{base}{'-' if name else ''}{name}.png")
    drawn = {c.label: [p.folder for p in groups[c.label] if p.folder.finished] for c in best}
    named = f"{title(cell.experiment)}{', ' if where else ''}{where}"
    comparison({label: of for label, of in drawn.items() if of}, named, path)
    return str(path)

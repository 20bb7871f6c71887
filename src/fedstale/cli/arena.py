"""`fedstale arena …`: compare rules on equal terms, add one's own, and see who leads."""

import os
import shutil
import time
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedstale.core import BadInput
from fedstale.core.own_modules import import_from
from fedstale.core.system import cores
from fedstale.lab.advise import lessons
from fedstale.lab.advise.evidence import of_experiment
from fedstale.lab.advise.measures import measure
from fedstale.lab.arena import contest, suite, table
from fedstale.lab.arena.records import Contest, read
from fedstale.lab.arena.scores import missing, standings
from fedstale.lab.arena.table import boards, verdict
from fedstale.lab.build import find
from fedstale.lab.executors import Executor, compute, in_worker, waiting
from fedstale.lab.plan import Cell
from fedstale.lab.runs.store import write, write_csv
from fedstale.lab.schema import check
from fedstale.lab.spec import override
from fedstale.registry import RECIPES
from fedstale.view.terminal import console
from fedstale.view.terminal.runs import Log, On, logging
from fedstale.view.trackers.follow import Tracker

app = typer.Typer(no_args_is_help=True, help="Compare rules on equal terms: run, add, report.")
SUITES = Path(__file__).parents[1] / "lab" / "arena" / "suites"
Folder = Annotated[Path, console.out_option("Folder of the contest: runs, record, page.")]


class Size(StrEnum):
    """How much of a suite is computed."""

    smoke = "smoke"
    laptop = "laptop"
    clock = "clock"
    full = "full"


@app.command()
def run(
    name: Annotated[str, typer.Argument(metavar="SUITE", help="A packaged suite, or a TOML file.")] = "standard",
    size: Annotated[Size, typer.Option(help="How much of it to compute.")] = Size.smoke,
    jobs: console.Jobs = cores(),
    executor: On = Executor.processes,
    engine: Annotated[str, typer.Option(help="How local training is executed.")] = "auto",
    only_estimate: Annotated[
        bool, typer.Option("--estimate", help="Measure what it would cost, and stop.")
    ] = False,
    resume: console.Resume = False,
    log: Log = None,
    out: Folder = Path("arena"),
) -> None:
    """Tune and evaluate every rule of a suite in every cell."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, here and in the workers
    found = suite.read(find(name, SUITES, "suite"), size.value).model_copy(update={"engine": engine})
    if only_estimate or (size is not Size.smoke and not resume):
        _say_cost(found, jobs)
    if not only_estimate:
        _hold(contest.enter(found, out), out, jobs, _work(out, jobs, executor, resume, log))


def _say_cost(found: suite.Suite, jobs: int) -> None:
    """Say how long the contest will take, from a sample of every cell."""
    once = partial(compute, jobs=1, resume=False, command="", say=lambda line: None)
    runs, rounds, seconds = contest.estimate(found, once, console.say)
    told = f"{seconds / 3600:.1f} hours of a core, about {seconds / 3600 / jobs:.1f} hours with {jobs} processes"
    console.say(f"{runs} runs, {rounds} rounds: {told}")


@app.command()
def add(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="A recipe, or a rule of yours: package.module:Name.")],
    label: Annotated[str, typer.Option(help="Its name in the tables; that of the rule if left out.")] = "",
    config: console.Config = None,
    jobs: console.Jobs = cores(),
    executor: On = Executor.processes,
    resume: console.Resume = False,
    log: Log = None,
    out: Folder = Path("arena"),
) -> None:
    """Run one more rule in every cell of a contest, on the same terms, and see its place.

    The settings of the rule are given with -c, such as -c beta=0.3. Stored results of the others are not computed
    again.
    """
    import_from(Path())  # a rule may lie in the folder that the command is run in
    entry: dict[str, object] = {"kind": rule, "label": label or rule.rpartition(":")[2]}
    override(entry, *(config or []))
    found = contest.entered(out)
    changed = found.model_copy(update={"rules": [*found.rules, entry]})
    _hold(contest.enter(changed, out), out, jobs, _work(out, jobs, executor, resume, log), str(entry["label"]))


@app.command()
def report(
    out: Folder = Path("arena"),
    format: console.AsFormat = console.Format.text,
    advice: Annotated[
        Path | None, typer.Option(help="Also write the table that `fedstale advise` learns from to this file.")
    ] = None,
    publish: Annotated[
        Path | None,
        typer.Option(help="Also write page, numbers, and the texts of docs/arena.md (take.md, table.md) there."),
    ] = None,
) -> None:
    """Write the page and the Markdown table of a contest from its stored runs."""
    _report(out, "", format)
    if publish is not None:
        _publish(out, publish)
    if advice is not None:
        write_csv(advice, lessons.table(_lessons(read(out), contest.entered(out))))


def _publish(out: Path, folder: Path) -> None:
    """Copy the page and the numbers of a contest to a folder, with texts about it."""
    folder.mkdir(parents=True, exist_ok=True)
    held = read(out)
    for path in (out / name for name in ("page.html", "results.csv", contest.TIMES)):
        if path.exists():  # there is no page without plotly
            shutil.copyfile(path, folder / path.name)
    for name, text in (("take.md", verdict(held)), ("table.md", boards(held, out))):
        (folder / name).write_text(text, encoding="utf-8")


def _lessons(held: Contest, found: suite.Suite) -> list[lessons.Lesson]:
    """What `advise` learns from every cell: its participation, and how far the recipes were from the best."""
    rules, learnt = list(held.cells[0].entries), []
    for cell, lost in zip(held.cells, missing(held.cells, rules).mean(axis=2).T, strict=True):
        place = suite.Place(cell.task, cell.participation, cell.belief)
        e = of_experiment(check(suite.table(found, place, found.seeds, ["fedavg"], 1.0)), None)
        named = {rule: float(x) for rule, x in zip(rules, lost, strict=True) if rule in RECIPES}
        learnt.append(lessons.Lesson(cell.name, lessons.features(measure(e), e.known), named))
    return learnt


def _work(out: Path, jobs: int, executor: Executor, resume: bool, log: list[Tracker] | None) -> contest.Compute:
    """What computes the runs of a stage, and tells trackers about those that are not stored yet."""
    work = partial(compute, jobs=jobs, resume=resume, executor=executor, extend=True)

    def stage(cells: Sequence[Cell]) -> None:
        with logging(log, [p for cell in cells for p in waiting(cell)], out):
            work(cells, command=console.command_line(), say=console.say)

    return stage


def _hold(found: suite.Suite, out: Path, jobs: int, work: contest.Compute, label: str = "") -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    start = time.monotonic()
    contest.hold(found, out, work, console.say, map if jobs == 1 else in_worker)
    console.say(f"{time.monotonic() - start:.0f} s")
    _report(out, label, console.Format.text)


def _report(out: Path, label: str, format: console.Format) -> None:
    """Write page.html and table.md, and print the leaderboard."""
    held = read(out)
    found = standings(held.cells, held.full)
    pages = _write_page(held, out)
    write_csv(out / "results.csv", table.results(held))
    text = f"{table.about(held)}\n\n{table.markdown(held.cells, held.full)}\n\n{table.WORDS}\n"
    write(out / "table.md", lambda file: file.write(text.encode()))
    if format == console.Format.json:
        console.print_json([s._asdict() for s in found])
        return
    for cells in filter(None, (held.cells, held.timed)):
        rows, clock = table.rows(standings(cells, held.full)), ", with a clock" if cells[0].hours else ""
        short = [dict(zip(table.head(cells)[:8], row, strict=False)) for row in rows]
        console.print_table(short, f"{len(cells)} cells{clock}, {len(held.about['seeds'])} seeds")
    if label:
        place = [s.rule for s in found].index(label) + 1
        group = "in the leading group" if found[place - 1].leading else "behind the leading group"
        print(f"{label} is number {place} of {len(found)} by missing progress, {group}")
    print(f"{pages}table: {out / 'table.md'}")


def _write_page(held: Contest, out: Path) -> str:
    """Write page.html and say so; without plotly a sentence says what is missing, and the rest goes on."""
    from fedstale.view.page.arena import page

    try:
        text = page(held)
    except BadInput as error:
        console.say(f"page.html is not written: {error}")
        return ""
    write(out / "page.html", lambda file: file.write(text.encode()))
    return f"page: {out / 'page.html'}, "

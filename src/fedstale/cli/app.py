"""The command line: `fedstale run FILE.toml`, `fedstale list`, `fedstale show RUN`.

Exit codes: 0 done, 2 something in the input cannot be used, 3 a run diverged, 4 the disk or a file
failed, 130 interrupted (go on with --resume).
"""

import csv
import json
import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedstale.cli import console as display
from fedstale.cli.advise import advise
from fedstale.cli.bench import bench
from fedstale.cli.compare import compare
from fedstale.cli.federation import app as federation
from fedstale.cli.inspect import Format, inspect
from fedstale.cli.report import report
from fedstale.cli.reproduce import reproduce
from fedstale.core import BadInput, known, require
from fedstale.experiments import schema as configuration
from fedstale.experiments.execute import execute
from fedstale.experiments.interrupts import Interrupted, Stop
from fedstale.experiments.plan import Planned, by_label, digest, find, plan
from fedstale.registry import TABLES
from fedstale.runs import store
from fedstale.simulate import Diverged

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    help="Federated learning for clients that come and go.",
)  # fmt: skip
talk = Console(stderr=True)  # progress and complaints; results go to standard output


Out = Annotated[Path, typer.Option("--out", "-o", help="Folder that keeps the runs.")]
AsFormat = Annotated[Format, typer.Option("--format", help="How results are printed.")]


@app.command()
def run(
    file: Annotated[str, typer.Argument(help="Experiment: a TOML file, or the name of a packaged one.")],
    change: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="Override a key of the file.")
    ] = None,
    out: Out = Path("runs"),
    seeds: Annotated[str | None, typer.Option(help="Seeds instead of the file's: 1,2,3.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine instead of the file's, see `list engines`.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with interrupted runs.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Forget what is there and compute it anew.")] = False,
    checkpoint: Annotated[float, typer.Option(min=0, help="Seconds from one checkpoint to the next.")] = 10.0,
    format: AsFormat = Format.text,
) -> None:
    """Train every algorithm of an experiment with every seed and compare them."""
    short = [f"seeds=[{seeds}]" if seeds else "", f"engine={engine}" if engine else ""]
    overrides = [*(change or []), *filter(None, short)]
    chosen = configuration.read(find(file), overrides)
    planned = plan(chosen, store.open_store(out))
    stop = Stop()
    rounds = execute(
        chosen, planned, resume=resume, again=again, command=_command(), pause=checkpoint, stop=stop, say=_note
    )
    reused = display.follow(rounds, len(planned), chosen.rounds, talk)
    if reused:
        talk.print(f"{reused} of {len(planned)} runs were there already (--again computes them anew).")
    groups = by_label(planned)
    rows = display.summary({label: [p.folder.result() for p in ps] for label, ps in groups.items()})
    stem = chosen.name if not overrides else f"{chosen.name}-{digest(planned)}"  # a variant has its own files
    figure, numbers = out / f"{stem}.png", out / f"{stem}.csv"
    _write_csv(numbers, rows)
    _draw(groups, _title(chosen), figure)
    if format == Format.json:
        names = [p.folder.path.name for p in planned]
        print(json.dumps({"table": rows, "runs": names, "figure": str(figure), "numbers": str(numbers)}, indent=2))
    else:
        _screen().print(display.table(rows, _title(chosen)))
        print(f"picture: {figure}\nnumbers: {numbers}\nruns:    {out}/  (fedstale list runs, fedstale show RUN)")


@app.command("list")
def list_(
    what: Annotated[str | None, typer.Argument(help="Which list; all but the runs if left out.")] = None,
    out: Out = Path("runs"),
    format: AsFormat = Format.text,
) -> None:
    """What there is: recipes, strategies, participation, estimators, channels, datasets, models, …, runs."""
    tables = TABLES
    if what is not None:
        known(what, {**tables, "runs": None}, "the list")
    if what == "runs":
        rows = [_run_row(r) for r in store.runs(out)]
        _print_rows(rows, "runs", format)
        return
    for name in [what] if what else tables:
        rows = [{"name": key, "settings": settings, "what": about} for key, settings, about in tables[name].rows()]
        _print_rows(rows, name, format)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="Name of a run, or its folder.")],
    out: Out = Path("runs"),
    decisions: Annotated[
        Path | None, typer.Option("--decisions", help="Draw who was there and who was left out, into this file.")
    ] = None,
    format: AsFormat = Format.text,
) -> None:
    """One run: its configuration, where it was computed, and how it ended."""
    folder = _find(run, out)
    if decisions:
        kinds = (".png", ".pdf", ".svg")
        require(decisions.suffix in kinds, f"--decisions must end in {', '.join(kinds)}, got {decisions}")
        from fedstale.plots.decisions import decisions as draw  # matplotlib is slow to load

        draw(folder, decisions)
    result = folder.result() if folder.finished else None
    metrics = folder.metrics()
    if format == Format.json:
        parts = {"config": folder.config(), "environment": folder.environment(), "result": result}
        print(json.dumps(parts | {"last": metrics[-1] if metrics else None}, indent=2))
        return
    rounds = folder.config()["rounds"]
    state = "finished" if result else f"interrupted at round {len(metrics)} of {rounds}"
    Console().print(f"{folder.path.name}: {state}", highlight=False, markup=False)
    for title, value in (
        ("configuration", folder.config()),
        ("environment", folder.environment()),
        ("result", result),
    ):
        if value is not None:
            Console().print(f"\n{title}", style="bold")
            print("\n".join(f"  {key}: {_inline(inner)}" for key, inner in value.items()))


app.command()(inspect)
app.command()(advise)
app.command()(reproduce)
app.command()(report)
app.command()(compare)
app.command()(bench)
app.add_typer(federation, name="federation")


def _inline(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _find(run: str, out: Path) -> store.RunFolder:
    for path in (Path(run), out / run):
        if (path / "config.json").exists():
            return store.RunFolder(path)
    names = {r.path.name: r for r in store.runs(out)}
    matches = [name for name in names if name.startswith(run)]
    return names[matches[0] if len(matches) == 1 else known(run, names, "the run")]


def _run_row(folder: store.RunFolder) -> dict[str, Any]:
    result = folder.result() if folder.finished else {}
    main = next((n for n in ("accuracy", "objective") if n in result), None)
    value = "" if main is None else f"{main} {result[main]['final']:.4g}"
    state = "finished" if result else f"round {len(folder.metrics())} of {folder.config()['rounds']}"
    return {"name": folder.path.name, "state": state, "final": value}


def _print_rows(rows: list[dict[str, Any]], title: str, format: Format) -> None:
    if format == Format.json:
        print(json.dumps({title: rows}, indent=2))
        return
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for key in rows[0] if rows else ["nothing yet"]:
        table.add_column(key, overflow="fold")
    for row in rows:
        table.add_row(*map(str, row.values()))
    _screen().print(table)


def _note(sentence: str) -> None:
    if sentence:
        talk.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _screen() -> Console:
    screen = Console()
    if not screen.is_terminal:
        screen.width = 120  # a file has no width of its own
    return screen


def _draw(groups: dict[str, list[Planned]], title: str, path: Path) -> None:
    from fedstale.plots.comparison import comparison  # matplotlib is slow to load

    comparison({label: [p.folder for p in ps] for label, ps in groups.items()}, title, path)


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def _title(e: configuration.Experiment) -> str:
    spec = e.participation
    kind = (
        spec if isinstance(spec, str) else " ".join(f"{v}" if k == "kind" else f"{k}={v}" for k, v in spec.items())
    )
    seeds = f"{len(e.seeds)} seed{'s' if len(e.seeds) > 1 else ''}"
    return f"{e.name}: {e.data['dataset']}, {e.data['clients']} clients, {kind}, {seeds}"


def _command() -> str:
    return shlex.join(["fedstale", *sys.argv[1:]])


def main() -> None:
    """The command line, with every expected failure told in one sentence."""
    warnings.showwarning = lambda message, *_, **__: talk.print(f"warning: {message}", style="yellow", markup=False)
    try:
        app()
    except BadInput as error:
        _fail(str(error), 2)
    except Diverged as error:
        _fail(str(error), 3)
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 4)
    except (Interrupted, KeyboardInterrupt):
        _fail("interrupted; the same command with --resume goes on from here", 130)


def _fail(sentence: str, code: int) -> None:
    talk.print(f"fedstale: {sentence}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)

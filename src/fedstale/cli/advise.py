"""`fedstale advise`: recommend an algorithm for a participation, and simulate a shortlist of them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedstale.core import Floats, require
from fedstale.lab import schema
from fedstale.lab.advise import evidence, lessons, text, trial
from fedstale.lab.advise.evidence import Evidence, read_numbers, with_task
from fedstale.lab.advise.measures import measure, plain
from fedstale.lab.advise.rules import advise as decide
from fedstale.lab.build import find, packaged
from fedstale.lab.plan import plan
from fedstale.lab.runs import named, store
from fedstale.lab.schema import Experiment
from fedstale.simulate import Diverged
from fedstale.view.terminal import console
from fedstale.view.terminal.runs import simulate_rest

SOURCES = "a trace, a run's folder or an experiment, or --probs"


def advise(
    source: Annotated[
        Path | None,
        typer.Argument(help="A recorded trace, a run's folder, or an experiment: a file or a packaged name."),
    ] = None,
    probs: Annotated[
        str | None, typer.Option(help="Participation probabilities instead: 0.9,0.05,… or a file of numbers.")
    ] = None,
    experiment_file: Annotated[
        str | None, typer.Option("--experiment", help="Experiment that gives model, data and rounds.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Client weights a_i: 1,2,… or a file; the task's, or equal, if omitted.")
    ] = None,
    config: console.Config = None,
    clients_first: console.ClientsFirst = False,
    simulate: Annotated[bool, typer.Option("--simulate", help="Simulate a shortlist on the experiment.")] = False,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds to simulate (default: the experiment's, at most 200).")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds of the simulation.")] = "1,2,3",
    arena: Annotated[
        Path | None,
        typer.Option(help="Learn from this table of `arena report --advice`, not from the packaged one."),
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option("--held-out", help="Test the advice: every cell of the arena is advised from the others."),
    ] = False,
    out: console.Store = Path("runs"),
    format: console.AsFormat = console.Format.text,
) -> None:
    """Recommend an algorithm for this participation, with reasons.

    -c overrides a setting of the trace if there is one, else of the experiment.
    """
    learnt = lessons.read(arena)
    if held_out:
        print("\n".join(text.held_out_lines(learnt)))
        return
    named = None if experiment_file is None else find(experiment_file)
    e, experiment = gather(source, probs, named, weights, config or [], clients_first)
    require(experiment is not None or not simulate, "--simulate needs an experiment: add --experiment FILE.toml")
    m = measure(e)
    a = decide(m, e.known, learnt)
    tried = None
    if experiment is not None and simulate:
        tried = trial.shortlisted(experiment, e, a, rounds, console.parse_seeds(seeds))
    found: dict[str, Any] = {"source": e.source, "advice": {**a._asdict(), "also": [h._asdict() for h in a.also]}}
    found |= {"measures": plain(m), "notes": list(e.notes)}
    if format == console.Format.text:
        print("\n".join(text.lines(e, m, a)))
    if tried is not None:
        size = f"{len(tried.algorithms)} rules × {len(tried.seeds)} seeds × {tried.rounds} rounds"
        console.say(f"simulating {size} (--rounds, --seeds) …")
        planned = plan(tried, store.open_store(out))
        try:
            simulate_rest(tried, planned, console.command_line())
        except Diverged as error:
            console.say(f"warning: {error}")
        found["simulation"] = trial.rank(tried, planned, m, a)
        if format == console.Format.text:
            print("\n".join(text.ranking_lines(found["simulation"])))
    if format == console.Format.json:
        console.print_json(found)


def gather(
    source: Path | None, probs: str | None, config: Path | None, weights: str | None, changes: list[str],
    clients_first: bool,
) -> tuple[Evidence, Experiment | None]:  # fmt: skip
    """The evidence that the arguments name, and the experiment if there is one."""
    if source is not None and not source.exists():
        source = packaged().get(str(source), source)
    if source is not None and source.suffix == ".toml":
        require(config is None, f"one experiment is enough, got {source} and {config}")
        source, config = None, source
    require(source is None or probs is None, f"--probs or a source, not both, got {source}")
    require(bool(source or probs is not None or config), f"advise needs {SOURCES}, got nothing")
    a = None if weights is None else read_numbers(weights, "weights")
    own = source is None and probs is None  # the experiment says who comes
    experiment = None if config is None else read_experiment(config, changes if source is None else [], own)
    if probs is not None:
        e = evidence.of_probs(read_numbers(probs, "probs"), a)
    elif source is None:
        assert experiment is not None
        return evidence.of_experiment(experiment, a), experiment
    elif source.is_dir():
        return of_folder(named.one(str(source)), experiment, a)
    else:
        e = of_file(source, changes, clients_first, a)
    if experiment is None:
        return e, None
    return with_task(e, experiment, a), experiment.model_copy(update={"participation": replay(e)})


def of_folder(
    folder: store.RunFolder, experiment: Experiment | None, weights: Floats | None
) -> tuple[Evidence, Experiment | None]:
    """The evidence of a run, and the experiment: the one that is given, or the one that the run belongs to."""
    e = evidence.of_run(folder, weights)
    if experiment is not None:
        return with_task(e, experiment, weights), experiment
    return e, None if evidence.in_python(folder.config()) else evidence.experiment_of(folder.path)


def read_experiment(path: Path, changes: list[str], own: bool) -> Experiment:
    """The experiment; it need not name algorithms, nor a participation unless it is its `own` that counts."""
    stand_in = [] if own else ['participation={ kind = "bernoulli", p = 1.0 }']
    return schema.read(path, ['algorithms=["fedavg"]', *stand_in, *changes])


def of_file(path: Path, changes: list[str], clients_first: bool, weights: Floats | None) -> Evidence:
    """The evidence of a recorded trace."""
    require(path.exists(), f"there is no file or folder {path}; advise needs {SOURCES}")
    here, names = evidence.read_trace(path, changes, clients_first)
    require(bool(here.any()), f"{path} has {len(here)} rounds with nobody there; nothing can be said of it")
    return evidence.of_table(path.name, here, weights)._replace(names=names)


def replay(e: Evidence) -> dict[str, Any]:
    """The participation to simulate: the recording itself, or independent clients with these probabilities."""
    if e.here is None:
        return {"kind": "bernoulli", "p": e.p.tolist()}
    return {"kind": "trace", "matrix": e.here, "clients_first": False}

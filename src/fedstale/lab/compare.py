"""Comparisons and single runs of parts made in Python, with the store, files and table of `fedstale run`."""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from fedstale.core import Engine, Local, Participation, Strategy, Task, known, require, shown
from fedstale.defence import Defence, Liars
from fedstale.engines import MODULES
from fedstale.lab import lineage, schema
from fedstale.lab.build import make_participation
from fedstale.lab.execute import Stop, execute
from fedstale.lab.plan import Planned, plan_parts
from fedstale.lab.runs import store
from fedstale.lab.spec import Algorithm, Spec, Table, algorithm, describe, settings_in
from fedstale.participation.clock import Clock
from fedstale.privacy.ledger import Privacy
from fedstale.registry import ENGINES, PARTICIPATION, STRATEGIES, Recipe
from fedstale.simulate import Interrupted, Run, checked, require_kind
from fedstale.tasks.checksum import Content, describe_task
from fedstale.view.terminal.console import say, screen, talk
from fedstale.view.terminal.runs import follow, table, title, write_files

Entry = Spec | Strategy | Recipe  # an algorithm: a name, a table with `kind` and settings, or parts
Start = str | Path | store.RunFolder | None  # the folder of a run, FOLDER@ROUND, or round 1
Part = Any  # a part, its name, or a table with `kind` and settings


class Comparison(NamedTuple):
    """Finished runs of several algorithms, their summary and its files."""

    title: str
    rows: list[dict[str, Any]]  # one per algorithm: mean and standard deviation over the seeds
    runs: list[store.RunFolder]
    picture: Path
    numbers: Path  # the rows as a CSV file

    def table(self) -> None:
        """Print the rows as `fedstale run` does."""
        screen().print(table(self.rows, self.title))

    def __repr__(self) -> str:
        return f"Comparison({self.title!r}, {len(self.runs)} runs, picture={str(self.picture)!r})"


def compare(
    task: Task,
    algorithms: Sequence[Entry] | Mapping[str, Entry],
    participation: Part,
    *,
    rounds: int,
    local: Local,
    seeds: Sequence[int] = (1,),
    engine: str = "auto",
    estimator: Part = "known",
    server: Part = "sgd",
    channel: Part = "lossless",
    defence: Defence | None = None,
    liars: Liars | None = None,
    privacy: Privacy | None = None,
    clock: Clock | None = None,
    evaluate_every: int | None = None,
    evaluate_clients: int | None = None,
    evaluate: str = "all",
    patience: int | None = None,
    target: float | None = None,
    monitor: str | None = None,
    main: str | None = None,
    out: str | Path = "runs",
    name: str = "comparison",
    version: str = "",
    start: Start = None,
    resume: bool = False,
    again: bool = False,
    checkpoint_seconds: float = 10.0,
) -> Comparison:
    """Train every algorithm with every seed and compare them; the runs are kept in the folder `out`.

    An algorithm is a name ("fedstale"), a table ({"kind": "fedstale", "beta": 0.3}), a strategy
    (fs.FedStale(0.3)) or a recipe; a mapping gives them labels. The commands `list runs`, `show`, `report`,
    `compare` and `advise` read the folder. What is finished is not computed twice, unless `again`. What was
    stopped goes on with `resume=True`, to the same bits. A run is known by its settings, by the task's data,
    and by the source of your own functions and classes: where one of them changes, it is computed anew.
    A run stops early when the metric `monitor` has not improved for `patience` rounds, or has reached `target`.
    `main` is the metric that tables and pictures begin with, such as one of your own.
    `evaluate_every`, `evaluate_clients` and `evaluate="test"` say how much is evaluated, as in a TOML file.
    `version` is a text that stands for the data, where they are too large to be read or not all in the task.
    A `defence` judges the updates of all runs, `liars` lie in all of them, `privacy` adds noise. With a `clock`,
    all algorithms live through the same timeline of each seed. `start` is the folder of another run, or
    FOLDER@ROUND: all begin after that round, with the state of each part that they share.
    """
    optional = {"defence": defence, "liars": liars, "privacy": privacy, "clock": clock}
    given = {kind: part for kind, part in optional.items() if part is not None}
    for kind, part in {"task": task, **given, "local": local}.items():
        require_kind(kind, part)
    data, code = describe_task(task, version)
    named = isinstance(participation, str | Mapping)
    process = make_participation(participation, data) if named else participation
    shared = {"local": vars(local), "estimator": estimator, "server": server, "channel": channel}
    chosen = [_algorithm(entry, label, shared) for label, entry in _labelled(algorithms)]
    settings = {
        "name": name, "rounds": rounds, "seeds": list(seeds) if isinstance(seeds, Iterable) else seeds,
        "engine": known(engine, ENGINES, "engine"), "evaluate_every": evaluate_every, "evaluate": evaluate,
        "evaluate_clients": evaluate_clients, "patience": patience, "target": target, "monitor": monitor,
        "main": main, "defence": _told(defence, False), "liars": _told(liars, None),
        "privacy": _told(privacy, None),
    }  # fmt: skip
    experiment, planned = _plan(data, code, process, chosen, settings, Path(out), clock, start)
    how = {"resume": resume, "again": again, "checkpoint_seconds": checkpoint_seconds}
    _play(experiment, planned, how | {"task": task, "command": f"fs.compare(…, name={name!r})"})
    rows, picture, numbers = write_files(experiment, planned, [], Path(out))
    return Comparison(title(experiment), rows, [p.folder for p in planned], picture, numbers)


def record(
    run: Run,
    folder: str | Path = "runs",
    *,
    label: str = "",
    evaluate_every: int | None = None,
    evaluate_clients: int | None = None,
    evaluate: str = "all",
    patience: int | None = None,
    target: float | None = None,
    monitor: str | None = None,
    main: str | None = None,
    version: str = "",
    start: Start = None,
    resume: bool = False,
    again: bool = False,
    checkpoint_seconds: float = 10.0,
) -> store.RunFolder:
    """Play one run that is made of parts, `fs.Run(engine, strategy, …)`, and store it as `fedstale run` does.

    `folder` is a store, in which the run gets a folder of its own; `label` names the algorithm in tables. The
    other arguments are those of `fs.compare`. `list runs`, `show`, `report` and `compare` read the folder, and
    the run's metrics, parameters and result are in what is returned. A finished run is not played again.
    `start` is the folder of another run of the same model: this one goes on after its last round, with the state
    of each part that both share. With `resume` a finished run of fewer rounds goes on, to the same bits.
    """
    require(isinstance(run, Run), f"run must be fs.Run(engine, strategy, participation, rounds), got {shown(run)}")
    checked(run)
    for kind in ("strategy", "participation", "estimator", "server", "channel"):
        _check(kind, getattr(run, kind))
    data, code = describe_task(run.engine.task, version)
    parts = (run.strategy, run.estimator, run.server, run.channel, run.local or run.engine.local)
    settings = {
        "name": "record", "rounds": run.rounds, "seeds": [run.seed], "engine": _engine_name(run.engine),
        "evaluate_every": evaluate_every, "evaluate_clients": evaluate_clients, "evaluate": evaluate,
        "patience": patience, "target": target, "monitor": monitor, "main": main,
        "defence": _told(run.defence, False), "liars": _told(run.liars, None), "privacy": _told(run.privacy, None),
    }  # fmt: skip
    chosen = [Algorithm(label or _label(run.strategy), *parts)]
    experiment, planned = _plan(data, code, run.participation, chosen, settings, Path(folder), run.clock, start)
    how = {"resume": resume, "again": again, "checkpoint_seconds": checkpoint_seconds}
    _play(experiment, planned, how | {"engine": run.engine, "command": "fs.record(…)"})
    return planned[0].folder


def _told(part: Defence | Liars | Privacy | None, absent: Any) -> Any:
    """A defence, liars or privacy as a file has them: true, or a table of settings."""
    own = isinstance(part, Defence) and callable(part.root)
    require(not own, "a stored run needs a defence.root that a file can name: a number or 'package.module:name'")
    return absent if part is None else settings_in(part) or True


def _engine_name(engine: Engine) -> str:
    """The name of an engine's class as an experiment has it; of the user's own, package.module:Name."""
    named = {"BatchedQuadratic": "batched"} | {kind: name for name, (_, kind) in MODULES.items()}
    cls = type(engine)
    ours = cls.__module__.startswith("fedstale.")
    return named.get(cls.__name__, "") if ours else f"{cls.__module__}:{cls.__qualname__}"


def _play(experiment: schema.Experiment, planned: Sequence[Planned], how: Table) -> None:
    """Compute the runs that are not finished, and show how far they are.

    Ctrl-C stops them after the round at hand, with a checkpoint; threads get no signals.
    """
    main = threading.current_thread() is threading.main_thread()
    signals: AbstractContextManager[Callable[[], bool]] = Stop() if main else nullcontext(lambda: False)
    try:
        with signals as stop:
            reused = follow(execute(experiment, planned, say=say, stop=stop, **how), planned, talk)
    except Interrupted:
        raise KeyboardInterrupt("stopped with a checkpoint; resume=True goes on from here") from None
    if reused:
        say(f"{reused} of {len(planned)} runs were stored already (again=True computes them again)")


def _plan(
    data: Table, code: dict[str, str], process: Participation, chosen: Sequence[Algorithm], settings: Table,
    out: Path, clock: Clock | None, start: Start,
) -> tuple[schema.Experiment, list[Planned]]:  # fmt: skip
    """The arguments as an experiment, checked as a file is, and its runs."""
    _check("participation", process)
    target = settings["target"]
    raw = settings | {
        "target": float(target) if isinstance(target, int) else target, "data": data,
        "local": {"lr": float(chosen[0].local.lr)}, "participation": describe(process, PARTICIPATION),
        "algorithms": [a.label for a in chosen],
    }  # fmt: skip
    experiment = schema.validated(schema.Experiment, raw, "")
    seeds = experiment.seeds
    require(len(set(seeds)) == len(seeds), f"seeds must differ from each other, got {seeds}")
    code = code | Content([process]).code
    more = {"model": None} | ({"sources": code} if code else {})
    own = {a.label: Content([a]).code for a in chosen}
    planned = plan_parts(experiment, process, chosen, more, store.open_store(out), own, clock)
    return experiment, [*lineage.started(planned, start)]


def _labelled(algorithms: Sequence[Entry] | Mapping[str, Entry]) -> list[tuple[str, Entry]]:
    """The algorithms with their labels, which are empty where none is given."""
    ok = isinstance(algorithms, list | tuple | Mapping) and len(algorithms) > 0
    require(ok, f'algorithms must be a list such as ["fedavg", fs.FedStale(0.5)], got {shown(algorithms)}')
    return list(algorithms.items()) if isinstance(algorithms, Mapping) else [("", entry) for entry in algorithms]


def _algorithm(entry: Entry, label: str, shared: Table) -> Algorithm:
    """The parts of one algorithm; what the entry leaves out is shared."""
    if isinstance(entry, Recipe):
        shared, entry = shared | ({"estimator": entry.estimator} if entry.estimator else {}), entry.strategy
    made = algorithm(entry if isinstance(entry, str | Mapping) else "fedavg", "algorithms", **shared)
    if not isinstance(entry, str | Mapping):
        _check("strategy", entry)
        made = made._replace(strategy=entry, label=_label(entry))
    for kind in ("estimator", "server", "channel"):
        _check(kind, getattr(made, kind))
    return made._replace(label=label) if label else made


def _label(strategy: Any) -> str:
    """The name of a strategy and its settings that are not the defaults."""
    name = STRATEGIES.name_of(strategy).rpartition(":")[2]
    values = [(f.name, getattr(strategy, f.name), f.default) for f in dataclasses.fields(strategy)]
    return " ".join([name, *(f"{key}={shown(value)}" for key, value, default in values if value is not default)])


def _check(kind: str, value: object) -> None:
    """Refuse what is not a part of this kind, or has no settings to be known by."""
    require_kind(kind, value)
    text = f"{kind} must be a dataclass, so that its settings are known: put @fs.part before"
    require(dataclasses.is_dataclass(value), f"{text} class {type(value).__name__}")

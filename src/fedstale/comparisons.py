"""Compare algorithms on a task that is made in Python, with the store, files and table of `fedstale run`."""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedstale.cli.console import say, screen, talk
from fedstale.cli.run import follow, table, title, write_files
from fedstale.core import Local, Participation, Strategy, Task, known, require, shown
from fedstale.experiments import schema
from fedstale.experiments.build import make_participation
from fedstale.experiments.execute import Stop, execute
from fedstale.experiments.plan import plan_parts
from fedstale.experiments.spec import Algorithm, Spec, Table, algorithm, describe
from fedstale.registry import ENGINES, PARTICIPATION, STRATEGIES, Recipe
from fedstale.runs import store
from fedstale.simulate import Interrupted, require_kind
from fedstale.tasks.checksum import Content, describe_task

Entry = Spec | Strategy | Recipe  # an algorithm: a name, a table with `kind` and settings, or parts
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
    evaluate_every: int | None = None,
    out: str | Path = "runs",
    name: str = "comparison",
    version: str = "",
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
    `version` is a text that stands for the data, where they are too large to be read or not all in the task.
    """
    require_kind("task", task)
    require_kind("local", local)
    data, code = describe_task(task, version)
    process = participation if _is_part(participation) else make_participation(participation, data)
    shared = {"local": vars(local), "estimator": estimator, "server": server, "channel": channel}
    chosen = [_algorithm(entry, label, shared) for label, entry in _labelled(algorithms)]
    _check("participation", process)
    code |= Content([process]).code
    experiment = _experiment(name, rounds, seeds, evaluate_every, engine, data, process, chosen)
    more = {"model": None} | ({"sources": code} if code else {})
    own = {a.label: Content([a]).code for a in chosen}
    planned = plan_parts(experiment, process, chosen, more, store.open_store(Path(out)), own)
    with _stop() as stop:
        played = execute(experiment, planned, task=task, resume=resume, again=again, stop=stop,
                         say=say, command=f"fs.compare(…, name={name!r})",
                         checkpoint_seconds=checkpoint_seconds)  # fmt: skip
        follow(played, planned, talk)
    rows, picture, numbers = write_files(experiment, planned, [], Path(out))
    return Comparison(title(experiment), rows, [p.folder for p in planned], picture, numbers)


def _experiment(
    name: str, rounds: int, seeds: Iterable[int], every: int | None, engine: str, data: Table,
    process: Participation, chosen: Sequence[Algorithm],
) -> schema.Experiment:  # fmt: skip
    """The arguments as an experiment, checked as a file is."""
    raw = {
        "name": name, "rounds": rounds, "seeds": list(seeds) if isinstance(seeds, Iterable) else seeds,
        "evaluate_every": every, "engine": known(engine, ENGINES, "engine"), "data": data,
        "local": {"lr": float(chosen[0].local.lr)}, "participation": describe(process, PARTICIPATION),
        "algorithms": [a.label for a in chosen],
    }  # fmt: skip
    experiment = schema.validated(schema.Experiment, raw, "")
    require(len(set(experiment.seeds)) == len(experiment.seeds), f"seeds must differ from each other, got {seeds}")
    return experiment


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


def _is_part(value: object) -> bool:
    return not isinstance(value, str | Mapping)


def _check(kind: str, value: object) -> None:
    """Refuse what is not a part of this kind, or has no settings to be known by."""
    require_kind(kind, value)
    text = f"{kind} must be a dataclass, so that its settings are known: put @fs.part before"
    require(dataclasses.is_dataclass(value), f"{text} class {type(value).__name__}")


@contextmanager
def _stop() -> Iterator[Callable[[], bool]]:
    """Ctrl-C stops the runs after the round at hand, with a checkpoint; threads get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    try:
        with Stop() as stop:
            yield stop
    except Interrupted:
        raise KeyboardInterrupt("stopped with a checkpoint; resume=True goes on from here") from None

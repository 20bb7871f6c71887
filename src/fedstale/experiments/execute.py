"""A checked experiment → runs in a store; what is there is reused, what was interrupted goes on."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from fedstale import engines
from fedstale import registry as recipes
from fedstale.core import (
    Channel,
    Engine,
    Estimator,
    Local,
    Participation,
    Server,
    Snapshot,
    Strategy,
    known,
    require,
)
from fedstale.experiments import build as catalogue
from fedstale.experiments.recorder import Recorder, Saved, Tally, environment
from fedstale.experiments.schema import Experiment, Spec, build, describe, training
from fedstale.experiments.tracer import Tracer
from fedstale.rng import stream
from fedstale.runs import store
from fedstale.simulate import Diverged, Run, checked, first, informed, play, together

TRACED = 256  # realised weights cost n × n: with more clients they are left out
LOCAL_KEYS = tuple(f.name for f in dataclasses.fields(Local))
OWN_KEYS = ("kind", "label", "estimator", "server", "channel", *LOCAL_KEYS)  # of an entry of `algorithms`


class Interrupted(Exception):
    """The runs were asked to stop; they can be resumed."""


class Algorithm(NamedTuple):
    """The parts of one entry of `algorithms`."""

    label: str
    strategy: Strategy
    estimator: Estimator
    server: Server
    channel: Channel
    local: Local


class Planned(NamedTuple):
    """One run of an experiment, and where it is kept."""

    algorithm: Algorithm
    participation: Participation
    seed: int
    config: dict[str, Any]
    folder: store.RunFolder
    warmup: "Planned | None" = None  # the run whose end is this one's start


class Progress(NamedTuple):
    """A round that has just been recorded; with a result, the run is finished."""

    planned: Planned
    t: int
    metrics: dict[str, Any]
    result: dict[str, Any] | None = None
    reused: bool = False


def plan(experiment: Experiment, folder: Path) -> list[Planned]:
    """All runs: for each seed, all algorithms. Every part is built here, so that a mistake costs nothing."""
    if "partition" in experiment.data:
        catalogue.division(experiment.data)
    participation = catalogue.make_participation(experiment.participation, experiment.data)
    algorithms = [algorithm(spec, experiment, f"algorithms.{k}") for k, spec in enumerate(experiment.algorithms)]
    labels = [a.label for a in algorithms]
    twice = [label for label in labels if labels.count(label) > 1]
    require(not twice, f"every algorithm needs a label of its own, got {twice[:1] * 2}; set `label`")
    shared = {
        "rounds": experiment.rounds,
        "evaluate_every": cadence(experiment),
        "engine": experiment.engine,
        "data": experiment.data,
        "model": experiment.model.model_dump() if experiment.data["dataset"] != "quadratic" else None,
        "participation": describe(participation, recipes.PARTICIPATION),
    }
    planned = []
    for seed in experiment.seeds:
        warm = _warmup(experiment, participation, shared, seed, folder)
        before = {"warmup": warm.folder.path.name} if warm else {}
        for chosen in algorithms:
            config = shared | _described(chosen) | {"seed": seed} | before
            run = store.RunFolder(folder / store.run_name(chosen.label, seed, config))
            planned.append(Planned(chosen, participation, seed, config, run, warm))
    return planned


def _warmup(
    experiment: Experiment, participation: Participation, shared: dict[str, Any], seed: int, folder: Path
) -> Planned | None:
    """The FedAvg run that comes first, with a seed of its own so that no draw is used twice."""
    if experiment.warmup is None:
        return None
    settings = experiment.warmup.model_dump()
    rounds = settings.pop("rounds")
    chosen = algorithm({"kind": "fedavg", "label": "warm-up", **settings}, experiment, "warmup")
    own = int(stream(seed, "warmup").integers(2**31))
    config = shared | _described(chosen) | {"seed": own, "rounds": rounds}
    return Planned(
        chosen, participation, own, config, store.RunFolder(folder / store.run_name("warm-up", seed, config))
    )


def algorithm(spec: Spec, experiment: Experiment, where: str) -> Algorithm:
    """A recipe's parts; what the entry says wins over the recipe, and the recipe over the file."""
    entry: dict[str, Any] = {"kind": spec} if isinstance(spec, str) else dict(spec)
    require("kind" in entry, f"{where}.kind is missing; known: {', '.join(recipes.RECIPES)}")
    base = recipes.RECIPES[known(entry["kind"], recipes.RECIPES, f"{where}.kind")]
    settings = {key: value for key, value in entry.items() if key not in OWN_KEYS}
    fields = {f.name: f for f in dataclasses.fields(base.strategy)}  # type: ignore[arg-type]
    for key in settings:
        known(key, fields | dict.fromkeys(OWN_KEYS), f"{where} setting")
    told = ", ".join(f"{key}={value}" for key, value in settings.items())
    estimator = entry.get("estimator", base.estimator or experiment.estimator)
    local = experiment.local.model_dump() | {key: entry[key] for key in LOCAL_KEYS if key in entry}
    return Algorithm(
        label=str(entry.get("label", entry["kind"] + (f" {told}" if told else ""))),
        strategy=build(describe(base.strategy, recipes.STRATEGIES) | settings, recipes.STRATEGIES, where),
        estimator=_part(estimator, recipes.ESTIMATORS, "estimator"),
        server=_part(entry.get("server", experiment.server), recipes.SERVERS, "server"),
        channel=_part(entry.get("channel", experiment.channel), recipes.CHANNELS, "channel"),
        local=training(local, where),
    )


def _part(spec: Any, table: Any, where: str) -> Any:
    return build(spec, table, where) if isinstance(spec, str | dict) else spec


def _described(a: Algorithm) -> dict[str, Any]:
    return {
        "label": a.label,
        "strategy": describe(a.strategy, recipes.STRATEGIES),
        "estimator": describe(a.estimator, recipes.ESTIMATORS),
        "server": describe(a.server, recipes.SERVERS),
        "channel": describe(a.channel, recipes.CHANNELS),
        "local": dataclasses.asdict(a.local),
    }


def cadence(experiment: Experiment) -> int:
    """How many rounds from one evaluation to the next: as asked, or fifty evaluations a run."""
    return experiment.evaluate_every or max(1, experiment.rounds // 50)


def execute(
    experiment: Experiment,
    planned: Sequence[Planned],
    *,
    resume: bool = False,
    again: bool = False,
    command: str = "",
    pause: float = 10.0,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Progress]:
    """Compute what is not there yet, yielding every round; `stop` is asked after each.

    A checkpoint is saved every `pause` seconds and when asked to stop; `say` is told what a user may want
    to know.
    """
    warmups = list({p.warmup.folder: p.warmup for p in planned if p.warmup}.values())
    anew = again and not resume  # to resume a recomputation is to leave alone what it has finished
    stages = [[p for p in stage if anew or not p.folder.finished] for stage in (warmups, planned)]
    waiting = [p for stage in stages for p in stage]
    for p in planned:
        if p not in waiting:
            yield Progress(p, experiment.rounds, {}, p.folder.result(), reused=True)
    if not waiting:
        return
    half = [p for p in waiting if p.folder.started]
    require(
        resume or again or not half,
        f"{len(half)} runs were interrupted (first: {half[0].folder.path.name if half else ''}); "
        "add --resume to go on with them or --again to start them anew",
    )
    with ExitStack() as stack:
        engine, name = _engine(experiment, waiting[0].algorithm.local, half if resume else [], stack)
        say(getattr(engine, "note", ""))
        yield from _compute(stages, engine, resume, environment(command) | {"engine": name}, pause, stop)


def _engine(experiment: Experiment, local: Local, begun: Sequence[Planned], stack: ExitStack) -> tuple[Engine, str]:
    """The engine and its name; interrupted runs go on with the one that they began with."""
    task = catalogue.make_task(experiment.data, experiment.model.model_dump(), experiment.device)
    name = str(begun[0].folder.environment().get("engine", experiment.engine)) if begun else experiment.engine
    engine = engines.make(name, task, local)
    stack.callback(getattr(engine, "close", lambda: None))
    if isinstance(engine, engines.Serial) and hasattr(task, "device"):
        from fedstale.engines.machine import one_thread  # torch is slow to load

        stack.enter_context(one_thread())  # small batches gain nothing from more, and lose their bits
    return engine, str(getattr(engine, "name", name))


def _compute(
    stages: list[list[Planned]],
    engine: Engine,
    resume: bool,
    where: dict[str, Any],
    pause: float,
    stop: Callable[[], bool],
) -> Iterator[Progress]:
    """The stages one after the other, as many runs in step as the engine likes."""
    runs = {p.folder: checked(_run(p, engine)) for stage in stages for p in stage}  # all, before any is computed
    width, diverged = getattr(engine, "width", 1), []
    for group in [stage[k : k + width] for stage in stages for k in range(0, len(stage), width)]:
        with ExitStack() as stack:
            active = [_Active(p, runs[p.folder], stack, resume, where, pause, len(group)) for p in group]
            for progress in _advance(engine, active, stop):
                diverged.append(progress) if isinstance(progress, str) else (yield progress)
    if diverged:
        raise Diverged("; ".join(diverged))


def _run(p: Planned, engine: Engine) -> Run:
    a, rounds, strategy = p.algorithm, p.config["rounds"], _at_home(p.algorithm.strategy, p.folder.path)
    strategy = informed(strategy, engine.task)
    strategy = Tracer(strategy) if engine.task.n <= TRACED else strategy
    return Run(engine, strategy, p.participation, rounds, p.seed, a.server, a.estimator, a.channel, a.local)


def _at_home(strategy: Strategy, folder: Path) -> Strategy:
    """The strategy with the files of its memory, if it has any, in the folder of the run."""
    memory: Any = getattr(strategy, "memory", None)
    if getattr(memory, "folder", None) is None:
        return strategy
    rows = dataclasses.replace(memory, folder=str(folder / memory.folder))
    return dataclasses.replace(strategy, memory=rows)  # type: ignore[type-var]


class _Active:
    """A run that is being computed: its folder locked, its recorder open, from its start or a checkpoint."""

    def __init__(
        self,
        p: Planned,
        run: Run,
        stack: ExitStack,
        resume: bool,
        where: dict[str, Any],
        pause: float,
        abreast: int,
    ) -> None:
        self.planned, self.rounds = p, run.rounds
        stack.enter_context(p.folder.locked())
        saved = self._saved(run) if resume and p.folder.started else None
        if saved is None:
            p.folder.clear()
        store.write_json(p.folder.path / "config.json", p.config)
        store.write_json(p.folder.path / "environment.json", where)
        every = p.config["evaluate_every"]
        self.recorder = Recorder(p.folder, run.engine.task, run.rounds, every, pause, saved, abreast)
        stack.callback(self.recorder.close)
        self.start = saved.checkpoint if saved else first(run)
        if p.warmup and not saved:
            self.start = self.start._replace(params=p.warmup.folder.params())
        self.play = play(run, self.start)

    def _saved(self, run: Run) -> Saved:
        like = Saved(first(run), Tally.empty(run.engine.task.n))
        saved: Saved = self.planned.folder.load_checkpoint(like)
        return saved

    def record(self, s: Snapshot) -> Progress:
        line = self.recorder.record(s)
        return Progress(self.planned, s.t, line, self.recorder.finish(s.checkpoint) if s.t == self.rounds else None)

    def epitaph(self, stop: Diverged) -> str:
        last = self.recorder.saved
        where = (
            f"the last good checkpoint is round {last} in {self.planned.folder.path}" if last else "none was saved"
        )
        return f"{self.planned.algorithm.label}, seed {self.planned.seed}: {stop}; {where}"


def _advance(engine: Engine, active: list[_Active], stop: Callable[[], bool]) -> Iterator[Progress | str]:
    """Play a group of runs in step and record every round; a run that diverged gives a sentence."""
    for a in active:
        if a.start.t == a.rounds:  # it was killed between its last round and its result
            yield Progress(a.planned, a.rounds, {}, a.recorder.finish(a.start))
    for snapshots in together(engine, [a.play for a in active]):
        for k, s in snapshots.items():
            yield active[k].epitaph(s) if isinstance(s, Diverged) else active[k].record(s)
        if stop():
            for k, s in snapshots.items():
                if not isinstance(s, Diverged) and s.t < active[k].rounds:
                    active[k].recorder.save(s.checkpoint)
            raise Interrupted

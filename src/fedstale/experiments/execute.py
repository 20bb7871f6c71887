"""Compute the planned runs of an experiment: finished ones are reused, interrupted ones continue."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedstale import engines
from fedstale.core import (
    BadInput,
    Closes,
    Engine,
    ExplainsItself,
    HasDevice,
    Local,
    Snapshot,
    StepsTogether,
    Strategy,
    require,
)
from fedstale.experiments.build import make_task
from fedstale.experiments.interrupts import Interrupted
from fedstale.experiments.plan import Planned, warmups
from fedstale.experiments.recorder import Checkpoints, Recorder, Saved, Tally, environment
from fedstale.experiments.schema import Experiment
from fedstale.experiments.tracer import Tracer
from fedstale.memory import KeepsMemory
from fedstale.runs import store
from fedstale.runs.metrics import TRACED
from fedstale.simulate import Diverged, Run, bound, checked, first, play, together


class Progress(NamedTuple):
    """A round that has just been recorded; `result` is set after the last round of the run."""

    planned: Planned
    t: int
    metrics: dict[str, Any]
    result: dict[str, Any] | None = None
    reused: bool = False


def execute(
    experiment: Experiment,
    planned: Sequence[Planned],
    *,
    resume: bool = False,
    again: bool = False,
    command: str = "",
    checkpoint_seconds: float = 10.0,
    keep_checkpoints: bool = False,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Progress]:
    """Compute the runs that are not finished, yielding every round; `stop` is asked after each.

    `resume` continues interrupted runs, `again` forgets finished ones; with both, an interrupted recomputation
    continues and what it has finished is left alone. Checkpoints are saved every so many seconds and on a stop;
    a finished run keeps its last one only if asked. `say` receives sentences for the user.
    """
    anew = again and not resume
    stages = [[p for p in stage if anew or not p.folder.finished] for stage in (warmups(planned), planned)]
    waiting = [p for stage in stages for p in stage]
    folders = {p.folder for p in waiting}
    for p in planned:
        if p.folder not in folders:
            yield Progress(p, p.config["rounds"], {}, p.folder.result(), reused=True)
    if not waiting:
        return
    if not (resume or again):
        require_resumable(waiting)
    with ExitStack() as stack:
        begun = [p for p in waiting if p.folder.started] if resume else []
        engine, name = _engine(experiment, waiting[0].algorithm.local, begun, stack)
        say(engine.note if isinstance(engine, ExplainsItself) else "")
        where, saving = environment(command) | {"engine": name}, Checkpoints(checkpoint_seconds, keep_checkpoints)
        activate = partial(_Active, resume=resume, where=where, checkpoints=saving)
        yield from _compute(stages, engine, activate, stop)


def require_resumable(waiting: Sequence[Planned]) -> None:
    """Refuse to start runs that have a checkpoint: another process computes them, or they were interrupted."""
    begun = [p.folder for p in waiting if p.folder.started]
    for folder in begun:
        with folder.locked():  # refuses if another process holds the lock
            pass
    require(
        not begun,
        f"{len(begun)} runs were interrupted (first: {begun[0].path.name if begun else ''}); "
        "add --resume to go on with them or --again to start them anew",
    )


def _engine(experiment: Experiment, local: Local, begun: Sequence[Planned], stack: ExitStack) -> tuple[Engine, str]:
    """The engine and its name; interrupted runs go on with the one that they began with."""
    task = make_task(experiment.data, experiment.model.model_dump(), experiment.device)
    name = str(begun[0].folder.environment().get("engine", experiment.engine)) if begun else experiment.engine
    engine = engines.make(name, task, local)
    if isinstance(engine, Closes):
        stack.callback(engine.close)
    if isinstance(engine, engines.Serial) and isinstance(task, HasDevice):
        from fedstale.tasks.local import one_thread  # torch is slow to load

        stack.enter_context(one_thread())  # small batches gain nothing from more, and lose their bits
    return engine, engine.name if isinstance(engine, ExplainsItself) else name


def _compute(
    stages: list[list[Planned]], engine: Engine, activate: Callable[..., "_Active"], stop: Callable[[], bool]
) -> Iterator[Progress]:
    """The stages one after the other, with as many runs in step as the engine takes."""
    runs = {p.folder: checked(_run(p, engine)) for stage in stages for p in stage}  # all, before any is computed
    width, diverged = engine.width if isinstance(engine, StepsTogether) else 1, []
    for group in [stage[k : k + width] for stage in stages for k in range(0, len(stage), width)]:
        with ExitStack() as stack:
            active = [activate(p, runs[p.folder], stack) for p in group]
            for progress in _advance(engine, active, stop):
                diverged.append(progress) if isinstance(progress, str) else (yield progress)
    if diverged:
        raise Diverged("; ".join(diverged))


def _run(p: Planned, engine: Engine) -> Run:
    a, rounds, strategy = p.algorithm, p.config["rounds"], _at_home(p.algorithm.strategy, p.folder.path)
    strategy = bound(strategy, engine.task)
    strategy = Tracer(strategy) if engine.task.n <= TRACED else strategy
    return Run(engine, strategy, p.participation, rounds, p.seed, a.server, a.estimator, a.channel, a.local)


def _at_home(strategy: Strategy, folder: Path) -> Strategy:
    """The strategy with the files of its memory, if it has any, in the folder of the run."""
    if not isinstance(strategy, KeepsMemory) or strategy.memory.folder is None:
        return strategy
    rows = Path(strategy.memory.folder)
    inside = not rows.is_absolute() and ".." not in rows.parts
    require(inside, f"memory.folder must be inside the run's folder, such as 'rows', got {str(rows)!r}")
    memory = dataclasses.replace(strategy.memory, folder=str(folder / rows))
    return dataclasses.replace(strategy, memory=memory)  # type: ignore[type-var]


class _Active:
    """A run that is being computed: its folder locked, its recorder open, from its start or a checkpoint."""

    def __init__(
        self,
        p: Planned,
        run: Run,
        stack: ExitStack,
        *,
        resume: bool,
        where: dict[str, Any],
        checkpoints: Checkpoints,
    ) -> None:
        self.planned, self.rounds = p, run.rounds
        stack.enter_context(p.folder.locked())
        saved = self._saved(run) if resume and p.folder.started else None
        if saved is None:
            p.folder.clear()
        store.write_json(p.folder.path / "config.json", p.config)
        store.write_json(p.folder.path / "environment.json", where)
        evaluate_every = p.config["evaluate_every"]
        self.recorder = Recorder(p.folder, run.engine.task, run.rounds, evaluate_every, checkpoints, saved)
        stack.callback(self.recorder.close)
        self.start = saved.checkpoint if saved else first(run)
        if p.warmup and not saved:
            self.start = self.start._replace(params=p.warmup.folder.params())
        self.play = play(run, self.start)

    def _saved(self, run: Run) -> Saved | None:
        """The checkpoint with the metrics up to it; None, and a warning, where they are damaged."""
        folder = self.planned.folder
        try:
            saved: Saved = folder.load_checkpoint(Saved(first(run), Tally.empty(run.engine.task.n)))
            folder.open_metrics(saved.checkpoint.t).close()
            return saved
        except BadInput as error:
            warnings.warn(f"{error}; {folder.path.name} starts again from round 1", stacklevel=2)
            return None

    def record(self, s: Snapshot) -> Progress:
        """Write a round to the folder, and the result after the last one."""
        line = self.recorder.record(s)
        return Progress(self.planned, s.t, line, self.recorder.finish(s.checkpoint) if s.t == self.rounds else None)

    def divergence_message(self, stop: Diverged) -> str:
        """Which run diverged, and where its last good checkpoint is."""
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
            yield active[k].divergence_message(s) if isinstance(s, Diverged) else active[k].record(s)
        if stop():
            for k, s in snapshots.items():
                if not isinstance(s, Diverged) and s.t < active[k].rounds:
                    active[k].recorder.save(s.checkpoint)
            raise Interrupted

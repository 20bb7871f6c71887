"""Compute the planned runs of an experiment: finished ones are reused, interrupted ones continue.

Ctrl-C, SIGTERM, SIGHUP and a file `stop` in the folder of one of them stop the runs that are computed together
after the round at hand, with a checkpoint.
"""

import dataclasses
import multiprocessing
import os
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from fedstale import core, engines
from fedstale.core import Engine, Local, Snapshot, Strategy, Task, bound, known, rebuilt, require
from fedstale.core.abilities import HasNote, evaluate, listed, names_of
from fedstale.lab.build import make_task
from fedstale.lab.cadence import cadence, evaluation_task
from fedstale.lab.plan import Planned, warmups
from fedstale.lab.probes import Tracer, traceable
from fedstale.lab.recorder import Recorder, environment, packages
from fedstale.lab.runs import store
from fedstale.lab.runs.metrics import OBJECTIVE, TRACED
from fedstale.lab.schema import Experiment
from fedstale.lab.spec import make_section
from fedstale.memory import KeepsMemory
from fedstale.simulate import Diverged, Interrupted, Run, checked, first, play, together


class Stop:
    """Says whether the runs should stop, and is asked after every round.

    The first signal stops them after the round at hand, the second one ends the process at once. The handlers
    are installed on construction and, in a `with` block, removed at its end. A `worker` process ends when the one
    that waits for its result is gone.
    """

    def __init__(self, worker: bool = False) -> None:
        self.asked, self.parent = False, multiprocessing.parent_process() if worker else None
        hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # not under nohup
        numbers = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangs_up else []))
        self.before = {number: signal.signal(number, self._ask) for number in numbers}

    def __enter__(self) -> "Stop":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        if self.asked:
            os._exit(130)
        self.asked = True

    def __call__(self) -> bool:
        if self.parent and not self.parent.is_alive():  # nobody waits for the result
            os._exit(130)
        return self.asked


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
    task: Task | None = None,
    engine: Engine | None = None,
    resume: bool = False,
    extend: bool = False,
    again: bool = False,
    command: str = "",
    checkpoint_seconds: float = 10.0,
    keep_checkpoints: bool = False,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Progress]:
    """Compute the runs that are not finished, yielding every round; `stop` is asked after each.

    The task is the one that the experiment describes, unless a `task` is given, or an `engine` that has one.
    `resume` continues interrupted runs, `again` forgets finished ones; with both, an interrupted recomputation
    continues and what it has finished is left alone. `extend` lets new runs go on from shorter ones of the same
    settings. Checkpoints are saved every so many seconds and on a stop; a finished run keeps its last one only if
    asked. `say` receives sentences for the user.
    """
    todo = Todo.of(planned, anew := again and not resume)
    _warn_of_damage(todo.waiting, anew)
    yield from (Progress(p, p.config["rounds"], {}, p.folder.result(), reused=True) for p in todo.finished)
    _warn_of_versions(todo.finished)
    if not todo.waiting and todo.diverged:
        raise Diverged(f"{'; '.join(todo.diverged)} (known from before: --again tries again)")
    if not todo.waiting:
        return
    if not (resume or again):
        require_resumable(todo.waiting)
    begun = [p for p in planned if p.folder.environment()] if resume else []
    made = engine and nullcontext((engine, experiment.engine))
    with made or _workshop(experiment, task, todo.waiting[0].algorithm.local, begun) as (engine, name):
        say(engine.note if isinstance(engine, core.ExplainsItself) else "")
        say(engine.task.note if isinstance(engine.task, HasNote) else "")
        where = environment(command) | {"engine": name}
        record = partial(Recorder, where=where, resume=resume, extend=extend)
        record = partial(record, seconds=checkpoint_seconds, keep=keep_checkpoints)
        yield from _compute(todo, engine, record, stop, say)


class Todo(NamedTuple):
    """What there is to do about planned runs, by what the store has of them."""

    warmups: list[Planned]
    runs: list[Planned]  # which start from the warm-ups
    finished: list[Planned]  # whose results are there
    diverged: list[str]  # why others cannot be finished

    @classmethod
    def of(cls, planned: Sequence[Planned], anew: bool) -> "Todo":
        """With `anew`, everything is computed again."""
        known = [] if anew else [why for p in planned if (why := diverged(p)) and not p.folder.finished]
        before = [p for p in warmups(planned) if anew or not _whole(p)]
        runs = [p for p in planned if anew or not ended(p)]
        folders = {p.folder for p in (*before, *runs)}
        return cls(before, runs, [p for p in planned if p.folder not in folders and p.folder.finished], known)

    @property
    def waiting(self) -> list[Planned]:
        """All that is computed."""
        return self.warmups + self.runs


def diverged(p: Planned) -> str | None:
    """Why a run cannot be finished, if that is known; another version of the code tries again."""
    return p.folder.diverged(str(packages()["fedstale"]))


def ended(p: Planned) -> bool:
    """Whether a run is finished, with files as it has written them, or known to diverge."""
    return _whole(p) or (diverged(p) is not None and not p.folder.finished)


def _whole(p: Planned) -> bool:
    return p.folder.finished and not p.folder.damage


def _warn_of_damage(waiting: Sequence[Planned], anew: bool) -> None:
    """Say which finished runs are computed again because a file of them is damaged."""
    for p in waiting:
        if not anew and (p.folder.path / "result.json").exists():
            why = p.folder.damage or f"{p.folder.path}/result.json cannot be read"
            warnings.warn(f"{why}; {p.folder.path.name} starts again from round 1", stacklevel=3)


def require_resumable(waiting: Sequence[Planned]) -> None:
    """Refuse to start runs that have a checkpoint: another process computes them, or they were interrupted."""
    begun = [p.folder for p in waiting if p.folder.started]
    for folder in begun:
        with folder.locked():  # refuses if another process holds the lock
            pass
    require(
        not begun,
        f"{len(begun)} runs were interrupted (first: {begun[0].path.name if begun else ''}); "
        "add --resume to go on with them or --again to start them anew (in Python resume=True, again=True)",
    )


def _warn_of_versions(reused: Sequence[Planned]) -> None:
    """Say which stored results other versions of this package, numpy, torch or numba have computed."""
    now = packages()
    made = Counter(_others(p.folder.environment().get("packages", {}), now) for p in reused)
    for others, count in made.items():
        if others:
            what = f"{count} stored run{'s were' if count > 1 else ' was'} computed with {others}"
            warnings.warn(f"{what}; --again (in Python again=True) computes anew", stacklevel=3)


def _others(then: Mapping[str, str | None], now: Mapping[str, str | None]) -> str:
    changed = {name: version for name, version in then.items() if name in now and version != now[name]}
    return " and ".join(f"{name} {version}, now {now[name]}" for name, version in changed.items())


@contextmanager
def _workshop(
    experiment: Experiment, task: Task | None, local: Local, begun: Sequence[Planned]
) -> Iterator[tuple[Engine, str]]:
    """The engine and its name; runs that are resumed go on with the one that the first of them began with."""
    task = task or make_task(experiment.data, experiment.model.model_dump(), experiment.device)
    name = str(begun[0].folder.environment().get("engine", experiment.engine)) if begun else experiment.engine
    if (name, experiment.engine) == ("pool", "auto"):
        name = "auto"  # a pool that could not be used has been replaced by serial, with the same bits
    engine = engines.make(name, task, local)
    chosen = engine.name if isinstance(engine, core.ExplainsItself) else name
    with ExitStack() as stack:
        if isinstance(engine, core.Closes):
            stack.callback(engine.close)
        if chosen == "serial" and isinstance(task, core.HasDevice):
            from fedstale.tasks.local import one_thread  # torch is slow to load

            stack.enter_context(one_thread())  # evaluations take no more than training
        yield engine, chosen


def _compute(
    todo: Todo, engine: Engine, record: Callable[..., Recorder], stop: Callable[[], bool],
    say: Callable[[str], None],
) -> Iterator[Progress]:  # fmt: skip
    """Warm-ups, then the runs, with as many in step as the engine takes."""
    runs = {p.folder: checked(_run(p, engine)) for p in todo.waiting}  # all, before any is computed
    p, diverged = (todo.runs or todo.warmups)[0], todo.diverged
    say(_checked_evaluation(runs[p.folder], p.config))
    say(_never(runs[p.folder]))
    width = engine.width if isinstance(engine, core.StepsTogether) else 1
    for group in [stage[k : k + width] for stage in todo[:2] for k in range(0, len(stage), width)]:
        with store.naming(group[0].folder.path), ExitStack() as stack:
            for p in group:
                stack.enter_context(p.folder.locked())
            active = [stack.enter_context(closing(record(p, runs[p.folder]))) for p in group]
            for r in active:
                say(r.note)
            for progress in _advance(active, stop):
                diverged.append(progress) if isinstance(progress, str) else (yield progress)
    if diverged:
        raise Diverged("; ".join(diverged))


def _checked_evaluation(run: Run, config: Mapping[str, Any]) -> str:
    """A sentence about a smaller evaluation; a metric that is asked for and not evaluated is refused."""
    chosen, tuned = cadence(run, config), config.get("tuned", {})
    asked = {key: config.get(key) for key in ("monitor", "main")}
    asked["tune_by"] = tuned.get("by", OBJECTIVE) if tuned else None
    if any(asked.values()):
        values = evaluate(evaluation_task(run.engine.task, config, chosen.clients), first(run))
        for key, name in asked.items():
            known(name or next(iter(values)), values, key)
    return chosen.note(run.engine.task.n)


def _never(run: Run) -> str:
    """A sentence about clients that never come: every rule trains without them."""
    n = run.engine.task.n
    never = np.flatnonzero(run.participation.probs(n) <= 0)
    called = names_of(run.engine.task)
    few = listed([called[i] if called else str(i) for i in never.tolist()])
    counts = f"{len(never)} of {n} clients never come (p = 0): nothing is learnt from them, though they are scored"
    return f"warning: {counts}: {few}" if len(never) else ""


def _run(p: Planned, engine: Engine) -> Run:
    a, config = p.algorithm, p.config
    strategy = bound(rebuilt(a.strategy, partial(_at_home, p.folder.path)), engine.task)
    strategy = Tracer(strategy) if engine.task.n <= TRACED and traceable(strategy) else strategy
    defence, liars, privacy = (make_section(name, config.get(name)) for name in ("defence", "liars", "privacy"))
    parts = (engine, strategy, p.participation, config["rounds"], p.seed, a.server, a.estimator, a.channel, a.local)
    return Run(*parts, defence, liars, privacy, p.clock)


def _at_home(folder: Path, strategy: Strategy) -> Strategy:
    """The strategy with the files of its memory, if it has any, in the folder of the run."""
    if not isinstance(strategy, KeepsMemory) or strategy.memory.folder is None:
        return strategy
    rows = Path(strategy.memory.folder)
    inside = not rows.is_absolute() and ".." not in rows.parts
    require(inside, f"memory.folder must be inside the run's folder, such as 'rows', got {str(rows)!r}")
    memory = dataclasses.replace(strategy.memory, folder=str(folder / rows))  # type: ignore[type-var]
    return dataclasses.replace(strategy, memory=memory)  # type: ignore[type-var]


def _advance(active: list[Recorder], stop: Callable[[], bool]) -> Iterator[Progress | str]:
    """Play a group of runs in step and record every round; a run that diverged gives a sentence."""
    for r in active:
        if r.over(r.start.t):  # it was killed between its last round and its result
            yield Progress(r.planned, r.start.t, {}, r.finish(r.start))
    going = [r for r in active if not r.over(r.start.t)]
    plays = [r.concerns.listening(play(r.run, r.start)) for r in going]
    for snapshots in together(active[0].run.engine, plays):
        for k, s in snapshots.items():
            yield _diverged(going[k], s) if isinstance(s, Diverged) else _recorded(going[k], s)
            if going[k].stopping.why:
                plays[k].close()  # it is left out from now on
        if stop() or any(r.stop_asked for r in going):
            for k, s in snapshots.items():
                if not isinstance(s, Diverged) and not going[k].over(s.t):
                    going[k].save(s.checkpoint)
            raise Interrupted


def _recorded(r: Recorder, s: Snapshot) -> Progress:
    line = r.record(s)
    return Progress(r.planned, s.t, line, r.finish(s.checkpoint) if r.over(s.t) else None)


def _diverged(r: Recorder, error: Diverged) -> str:
    """Which run diverged, and where its last good checkpoint is; its folder says so from now on."""
    there = f"the last good checkpoint is round {r.saved} in {r.folder.path}"
    last = there if r.saved else "there is no checkpoint"
    why = f"{r.planned.title}: {error}; {last}"
    store.write_json(r.folder.path / "diverged.json", {"why": why, "code": packages()["fedstale"]})
    return why

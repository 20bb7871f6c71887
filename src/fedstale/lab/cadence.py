"""When a run is evaluated, on which clients, and when it stops: by rounds and sizes, never by measured time.

Evaluation passes at most a tenth as many samples through the model as training does, unless the experiment says
otherwise (`evaluate_every`, `evaluate_clients`, `evaluate`) or that is a matter of milliseconds. With a target
there are more, at most half as many samples as training has, close together at first: the round that reaches it is
found to a few per cent, however long the run might have been.

A run stops early when a metric has reached a target or has not improved for some rounds. That follows from the
lines of metrics alone, so that a resumed run stops where one that was never interrupted does.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from fedstale.core import FetchesSamples, Job, NarrowsEvaluation, Task, keeps_own, require
from fedstale.core.rng import stream
from fedstale.engines.serial import work_of
from fedstale.lab.runs import metrics
from fedstale.simulate import Run

WANTED = 50  # evaluations of a run, or a few more, besides those of its last rounds
LAST = 10  # the last rounds are all evaluated where that is affordable, for the mean of the last 10
SHARE = 10  # samples that are trained for one that is evaluated, at least
TARGET_SHARE, DENSEST = 2, 20  # the same with a target, and the largest `growth`
FREE = 10**8  # samples × parameters whose evaluation is affordable in any case
SAMPLE = 1000  # clients in the smallest subsample that is chosen without being asked for


class Cadence(NamedTuple):
    """Round t is evaluated if `every` divides it, if it is one of the `last`, or if ⌊growth · ln t⌋ is new."""

    every: int
    last: int = LAST
    clients: int | None = None  # the size of a subsample; none: all clients
    growth: float = 0.0  # the round that reaches a target is found to a share of 1 / growth

    def due(self, t: int, rounds: int) -> bool:
        """Whether round t of so many is evaluated."""
        more = self.growth and (t == 1 or int(self.growth * math.log(t)) > int(self.growth * math.log(t - 1)))
        return t % self.every == 0 or t > rounds - self.last or bool(more)

    def note(self, n: int) -> str:
        """A sentence about an evaluation that was made smaller."""
        if self.last == LAST and self.clients is None:
            return ""
        some = f" on {self.clients} of {n} clients" if self.clients else ""
        why = "so that it stays below a tenth of the work (evaluate_every, evaluate_clients, evaluate)"
        return f"evaluation: every {self.every} rounds{some}, {why}"


def cadence(run: Run, config: Mapping[str, Any]) -> Cadence:
    """What the configuration of a run asks for, and what is affordable where it says nothing."""
    task, every, some = run.engine.task, config.get("evaluate_every"), config.get("evaluate_clients")
    if some is not None and some >= task.n:
        some = None
    if every is not None:
        return Cadence(int(every), LAST, some)
    size = evaluated_samples(task, config.get("evaluate") != "test") * (some or task.n) / task.n
    d = math.inf if isinstance(task, FetchesSamples) and task.fetched else task.d  # to fetch is never for nothing
    chosen = affordable(run.rounds, trained_samples(run), size, d)
    if config.get("target") is not None:
        count = max(trained_samples(run) / TARGET_SHARE, FREE / d) / max(size, 1)
        chosen = chosen._replace(growth=min(DENSEST, count / (1 + math.log(run.rounds))))
    if chosen.last == LAST or some or not isinstance(task, NarrowsEvaluation) or keeps_own(task):
        return chosen._replace(clients=some)
    full = run.rounds / chosen.every  # evaluations of all clients that are affordable
    full = min(full, trained_samples(run) / SHARE / size) if d == math.inf else full
    some = max(SAMPLE, int(task.n * full / LAST))
    if full >= LAST or some >= task.n:
        return chosen
    return affordable(run.rounds, trained_samples(run), size * some / task.n, d)._replace(clients=some)


def affordable(rounds: int, trained: float, size: float, d: float) -> Cadence:
    """The most evaluations of `size` samples that go with so many trained samples, at least one."""
    count = int(max(trained / SHARE, FREE / d) / max(size, 1))
    every = max(1, rounds // WANTED)
    if count >= min(rounds, rounds // every + LAST):
        return Cadence(every)
    if count >= 2 * LAST:
        return Cadence(-(-rounds // (count - LAST)))
    return Cadence(-(-rounds // max(1, count)), 1)


def trained_samples(run: Run) -> float:
    """Samples that training is expected to use in a whole run, from the work of a few clients.

    A step of a task that does not count samples counts as one.
    """
    task, local = run.engine.task, run.local or run.engine.local
    few = np.linspace(0, task.n - 1, min(task.n, 16)).astype(np.int64)
    work = work_of(task, Job(np.zeros(0, np.float32), few, run.seed, 1, local))
    counted = isinstance(task, NarrowsEvaluation)
    each = float(np.mean(work.samples if counted else work.steps)) if work else float(local.epochs or 1)
    return run.rounds * float(np.sum(run.participation.probs(task.n), dtype=np.float64)) * each


def evaluated_samples(task: Task, training: bool) -> float:
    """Samples of one evaluation; a client of a task that does not count them counts as one."""
    return float(task.evaluated_samples(training)) if isinstance(task, NarrowsEvaluation) else float(task.n)


def evaluation_task(task: Task, config: Mapping[str, Any], clients: int | None) -> Task:
    """The task whose `evaluate` a run asks: of all clients or of a subsample, which is the same in all runs."""
    test = config.get("evaluate") == "test"
    if not test and clients is None:
        return task
    ok = isinstance(task, NarrowsEvaluation)
    require(ok, f"evaluate and evaluate_clients need a task with samples, got {type(task).__name__}")
    whole = f"evaluate_clients must be left out where clients keep a part of the model, got {clients}"
    require(clients is None or not keeps_own(task), whole)
    return _narrowed(cast(Any, task), clients, not test)


@lru_cache(maxsize=1)  # the runs of an experiment share the copy of the samples
def _narrowed(task: Any, clients: int | None, training: bool) -> Task:
    some = stream(0, "evaluated").choice(len(task.weights), clients, replace=False) if clients else None
    found: Task = task.narrowed(None if some is None else np.sort(some), training)
    return found


class Stopping:
    """Watches the evaluated rounds of one run; `why` says why the run stops, and is empty until it does."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.patience, self.target = config.get("patience"), config.get("target")
        self.config = config
        self.best, self.since, self.why = -float("inf"), 0, ""

    @property
    def asked(self) -> bool:
        """Whether the run may stop early at all."""
        return self.patience is not None or self.target is not None

    def see(self, line: Mapping[str, Any]) -> None:
        """Take note of a line of metrics, if its round was evaluated."""
        if not self.asked or self.why or not (name := metrics.monitored(line, self.config)):
            return
        m, t, value = metrics.metric(name), line["round"], line[name]
        if m.score(value) > self.best:
            self.best, self.since = m.score(value), t
        if self.target is not None and m.score(value) >= m.score(self.target):
            self.why = f"{name} {m.text(value)} reached the target {m.text(self.target)} in round {t}"
        elif self.patience is not None and t - self.since >= self.patience:
            best = f"{m.text(m.score(self.best))} of round {self.since}"
            self.why = f"{name} did not improve on {best} until round {t}"

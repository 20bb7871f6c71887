"""What is known of who takes part: a trace, the p_i, an experiment or the folder of a run, in one form."""

import csv
import io
import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Floats, Mask, Mixes, Task, require
from fedstale.experiments import build as catalogue
from fedstale.experiments.schema import Experiment
from fedstale.experiments.spec import Spec, build
from fedstale.participation import Bernoulli, Events, Grid, LabelTied, Markov, MarkovClasses, Trace, TwoGroups
from fedstale.registry import CHANNELS
from fedstale.rng import stream

APART = (Bernoulli, TwoGroups, LabelTied, Markov, MarkovClasses)  # within a round, clients come independently
DRAWN = 20_000  # rounds that are drawn of a participation that is not one of these, at most
ENTRIES = 2**24  # of the table that is drawn


class Evidence(NamedTuple):
    source: str  # what it was taken from, in words
    p: Floats  # (n,) chance that an update of client i is here
    weights: Floats  # (n,) a_i, sums to 1
    here: Mask | None = None  # (rounds, n) who was there; None: clients that come independently
    recorded: bool = False  # whether `here` happened, or was drawn
    mixing: Floats | None = None  # (n,) λ_i, where they are known rather than measured
    arrival: Floats | None = None  # (n,) chance that an update gets through; None: it always does
    d: int | None = None  # parameters of the model
    planned: int | None = None  # rounds of training
    believed: Floats | None = None  # (n,) p̂_i of the run's estimator
    known: bool = True  # whether training will know the p_i
    notes: tuple[str, ...] = ()


def of_probs(p: Floats, weights: Floats | None) -> Evidence:
    """Clients that come independently, each with its own probability."""
    return Evidence("the given probabilities", p, even_or(weights, len(p)))


def of_table(name: str, here: Mask, weights: Floats | None) -> Evidence:
    """A recording, rounds × clients."""
    return Evidence(name, here.mean(axis=0), even_or(weights, here.shape[1]), here, recorded=True, known=False)


def of_experiment(experiment: Experiment, weights: Floats | None) -> Evidence:
    """What the participation and the channel of an experiment say."""
    task = task_of(experiment)
    n = task.n
    part: Any = catalogue.make_participation(experiment.participation, experiment.data)
    p = np.asarray(part.probs(n), np.float64)
    here, arrival = _table(part, n), arrival_of(experiment.channel, n, task.d)
    if here is not None and arrival is not None:
        here = here & (stream(0, "advise", "channel").random(here.shape) < arrival)
    return Evidence(
        source=f"{experiment.name}, participation {_kind(experiment.participation)}",
        p=p if arrival is None else p * arrival,
        weights=even_or(task.weights if weights is None else weights, n),
        here=here,
        recorded=isinstance(part, Trace | Events | Grid),
        mixing=_float64(part.mixing(n)) if isinstance(part, Mixes) else None,
        arrival=arrival,
        d=task.d,
        planned=experiment.rounds,
        known=_kind(experiment.estimator) == "known",
    )


def with_task(e: Evidence, experiment: Experiment, weights: Floats | None) -> Evidence:
    """The same participation, with the model, weights and rounds of an experiment."""
    task, n = task_of(experiment), len(e.p)
    require(task.n == n, f"the participation is of {n} clients, the experiment of {task.n}")
    a = even_or(task.weights if weights is None else weights, n)
    return e._replace(weights=a, d=task.d, planned=experiment.rounds)


def task_of(experiment: Experiment) -> Task:
    return catalogue.make_task(experiment.data, experiment.model.model_dump(), experiment.device)


def arrival_of(spec: Spec, n: int, d: int) -> Floats | None:
    """(n,) chance that an update gets through the channel; None if it always does."""
    arrival = _float64(build(spec, CHANNELS, "channel").probs(n, d))
    return arrival if bool((arrival < 1).any()) else None


def even_or(weights: npt.ArrayLike | None, n: int) -> Floats:
    a = np.ones(n) if weights is None else _float64(weights)
    ok = a.shape == (n,) and bool((a >= 0).all()) and 0 < float(a.sum()) < math.inf
    require(ok, f"weights must be {n} numbers of at least 0, not all 0, got {a.size}: {a[:5].tolist()}")
    return _float64(a / a.sum())


def _float64(values: npt.ArrayLike) -> Floats:
    return np.asarray(values, np.float64)


def _kind(spec: Spec) -> str:
    return spec if isinstance(spec, str) else str(spec.get("kind"))


def _table(part: Any, n: int) -> Mask | None:
    """What was recorded, rounds enough of what is not independent, or nothing."""
    if isinstance(part, APART):
        return None
    if isinstance(part, Trace):
        return part._rounds(n)
    if isinstance(part, Events | Grid):
        return np.asarray(part._table)
    rounds = max(2, min(DRAWN, ENTRIES // n))
    return np.array([*itertools.islice(part.rows(n, stream(0, "advise")), rounds)])


def read_numbers(text: str, what: str) -> Floats:
    """`0.9,0.05`, or the path of a .npy or text file of numbers, or of a CSV file with a column p or share."""
    try:
        return np.array(text.replace(",", " ").split(), np.float64)
    except ValueError:
        pass
    path = Path(text)
    require(path.is_file(), f"{what} must be numbers such as 0.9,0.05 or a file of them; there is no file {text}")
    try:
        if path.suffix == ".npy":
            return _float64(np.load(path, allow_pickle=False)).ravel()
        return np.array(_column(path.read_text(encoding="utf-8-sig")), np.float64)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{what} must be numbers or a .npy, .csv or text file of them, got {text}: {error}"
        ) from None


def _column(text: str) -> list[str]:
    header = next(csv.reader(io.StringIO(text)), [])
    for name in ("p", "probs", "share", "weight"):
        if name in header:
            return [row[name] for row in csv.DictReader(io.StringIO(text))]
    return text.replace(",", " ").split()


def checked_probs(p: Floats) -> Floats:
    """One chance per client, none of them 0: of who never comes nothing can be learnt, nor said."""
    require(p.size > 0, "probs must be one chance per client, got none")
    bad = np.flatnonzero(~((p > 0) & (p <= 1)))
    got = ", ".join(f"{p[i]:g} for client {i}" for i in bad[:3].tolist())
    require(len(bad) == 0, f"probs must be in (0, 1], got {got}; leave out a client that never comes")
    return p

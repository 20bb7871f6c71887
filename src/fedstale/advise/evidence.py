"""What is known about participation, in one form: from a trace, probabilities, an experiment or a run."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, Mask, Mixes, Task, require
from fedstale.experiments import build as catalogue
from fedstale.experiments.schema import Experiment
from fedstale.experiments.spec import Spec, build
from fedstale.participation import Bernoulli, Events, Grid, LabelTied, Markov, MarkovClasses, Trace, TwoGroups
from fedstale.registry import CHANNELS
from fedstale.rng import stream
from fedstale.theory import normalised

INDEPENDENT = (Bernoulli, TwoGroups, LabelTied, Markov, MarkovClasses)  # clients come independently of each other
DRAWN = 20_000  # most rounds that are simulated of any other participation
ENTRIES = 2**24  # most entries of that table


class Evidence(NamedTuple):
    """What is known about the participation of n clients, whatever it was taken from."""

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
    return Evidence("the given probabilities", p, normalised(weights, len(p)))


def of_table(name: str, here: Mask, weights: Floats | None) -> Evidence:
    """A recording, rounds × clients."""
    return Evidence(name, here.mean(axis=0), normalised(weights, here.shape[1]), here, recorded=True, known=False)


def of_experiment(experiment: Experiment, weights: Floats | None) -> Evidence:
    """The participation and the channel of an experiment, with its task and rounds."""
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
        weights=normalised(task.weights if weights is None else weights, n),
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
    a = normalised(task.weights if weights is None else weights, n)
    return e._replace(weights=a, d=task.d, planned=experiment.rounds)


def task_of(experiment: Experiment) -> Task:
    """The task that an experiment trains."""
    return catalogue.make_task(experiment.data, experiment.model.model_dump(), experiment.device)


def arrival_of(spec: Spec, n: int, d: int) -> Floats | None:
    """(n,) chance that an update gets through the channel; None if it always does."""
    arrival = _float64(build(spec, CHANNELS, "channel").probs(n, d))
    return arrival if bool((arrival < 1).any()) else None


def _float64(values: npt.ArrayLike) -> Floats:
    return np.asarray(values, np.float64)


def _kind(spec: Spec) -> str:
    return spec if isinstance(spec, str) else str(spec.get("kind"))


def _table(part: Any, n: int) -> Mask | None:
    """(rounds, n): the recording, or simulated rounds of dependent clients; None for independent ones."""
    if isinstance(part, INDEPENDENT):
        return None
    if isinstance(part, Trace):
        return part._rounds(n)
    if isinstance(part, Events | Grid):
        return np.asarray(part._table)
    rounds = max(2, min(DRAWN, ENTRIES // n))
    return np.array([*itertools.islice(part.rows(n, stream(0, "advise")), rounds)])


def checked_probs(p: Floats) -> Floats:
    """The probabilities, if all are in (0, 1]: nothing can be said about a client that never comes."""
    require(p.size > 0, "probs must be one chance per client, got none")
    bad = np.flatnonzero(~((p > 0) & (p <= 1)))
    got = ", ".join(f"{p[i]:g} for client {i}" for i in bad[:3].tolist())
    require(len(bad) == 0, f"probs must be in (0, 1], got {got}; leave out a client that never comes")
    return p

"""What a contest will cost, measured on a sample of every cell before it begins."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedstale.lab.arena.contest import Compute
from fedstale.lab.arena.suite import Place, Suite, experiment, first_settings, places, rules_of
from fedstale.lab.plan import plan
from fedstale.lab.runs import store
from fedstale.lab.sweep import Cell

SHORT, LONG = 12, 24  # rounds of the sample: the last 10 rounds of a run are always evaluated
RULES = 4  # of the sample: local training takes most of the time, and is the same for all


class Estimate(NamedTuple):
    """The size of a contest, and the seconds of one core that it takes."""

    runs: int
    rounds: int
    seconds: float


class Load(NamedTuple):
    """What is computed in one cell."""

    runs: int
    rounds: float


def load(suite: Suite, place: Place) -> Load:
    """The runs and rounds of all stages in a cell."""
    rules, tuning, rounds = len(rules_of(suite, place)), suite.tuning, _length(suite, place)
    short = (len(suite.task[place.task]["rates"]) + tuning.tried) * len(tuning.seeds)
    whole = tuning.keep * len(tuning.seeds) + len(suite.seeds)
    return Load(rules * (short + whole), rules * rounds * (tuning.share * short + whole))


def _length(suite: Suite, place: Place) -> float:
    """Rounds of a whole run; with a clock hundredths of its hours, since rounds differ from rule to rule."""
    task = suite.task[place.task]
    return 100 if "clock" in task else float(task["rounds"])


def estimate(suite: Suite, compute: Compute, say: Callable[[str], None]) -> Estimate:
    """Measure every cell: processor time, which depends little on what else the machine does."""
    seconds, runs, rounds = 0.0, 0, 0.0
    for place in places(suite):
        todo = load(suite, place)
        if not place.belief:  # the reference of a task comes first: loading and compiling do not count
            _seconds(suite, place, 1, compute)
        first, second = (_seconds(suite, place, length, compute) for length in (SHORT, LONG))
        rules = len(_sampled(suite, place))
        each = max(second - first, 0.0) / (LONG - SHORT) / rules  # of a round of a run
        once = max(first - SHORT * each * rules, 0.0) / rules  # of a run: its start and its last rounds
        took = todo.rounds * each + todo.runs * once
        say(f"{place.name}: {todo.runs} runs, about {took / 60:.1f} minutes of a core")
        seconds, runs, rounds = seconds + took, runs + todo.runs, rounds + todo.rounds
    return Estimate(runs, round(rounds), seconds)


def _sampled(suite: Suite, place: Place) -> list[str]:
    """Some of the rules, evenly from the list."""
    labels = list(rules_of(suite, place))
    return labels[:: -(-len(labels) // RULES)]


def _seconds(suite: Suite, place: Place, rounds: int, compute: Compute) -> float:
    mine = _sampled(suite, place)
    settings = {label: first_settings(suite, place, label)[: label in mine] for label in rules_of(suite, place)}
    share = rounds / _length(suite, place)
    sample = experiment(suite, place, suite.tuning.seeds[:1], settings, share)
    with tempfile.TemporaryDirectory() as folder:
        cell = Cell(place.name, {}, [], sample, plan(sample, store.open_store(Path(folder) / "runs")))
        start = time.process_time()
        compute([cell])
        return time.process_time() - start

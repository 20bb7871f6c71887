"""What the arena taught: how much progress every rule missed, in cells that are described by participation.

`fedstale arena report --advice FILE` writes the cells of a contest as a table; that of the standard suite comes
with the package. For other clients a rule is expected to miss what it missed in the cells, each weighted by how
alike its participation is. `held_out` tests the advice: every cell is advised from the others alone. Advice that
is worse there than to take `auto` everywhere is not given.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedstale.core import Floats, hooks_of, known, require
from fedstale.lab.advise.measures import Measures
from fedstale.memory import KeepsMemory
from fedstale.registry import RECIPES, recipe

FEATURES = ("bias", "noise", "stretches", "turns", "visits", "known", "seen")
SERVER_SIDE = {"forget", "inverse_weighting", "point"}  # hooks that ask nothing of a client
LUCK = 1.5  # times the bias that chance alone shows in a recording, up to which it may be that
SLIGHT = 0.01  # of the weight: a bias that nobody notices
WIDTH = 1.0  # of the weights, in deviations of a feature over the cells
LEAST = 0.01  # of 1 / p_var and of the rarest client's visits: below it, less makes no difference
MIXED = 0.3  # λ below which a round says little of the next one
TWICE = 2.0  # visits of the average client in the planned rounds, below which a memory is of little use
GAIN = 0.01  # of the best rule's progress: less is not worth a memory
PLAIN, DEFAULT = "fedavg", "auto"


class Lesson(NamedTuple):
    """A cell of a contest: what its participation is like, and how much progress each rule missed."""

    cell: str
    features: Floats  # in the order of FEATURES; nan where it is not known
    missing: Mapping[str, float]  # by recipe: the share of the best rule's progress


class Expected(NamedTuple):
    """How much of the best rule's progress a rule is expected to miss."""

    rule: str
    missing: float
    alike: float  # in the cell that is most alike


class Advised(NamedTuple):
    """A cell that was advised from all others."""

    cell: str
    advised: str
    missing: float  # by the advised rule
    best: str


class Policy(NamedTuple):
    """How the advice follows from the cells."""

    alike: bool  # the rule that is expected to miss least in alike cells, else `auto`
    cases: bool  # FedAvg where clients come evenly or hardly ever, unless `auto` gains there


POLICIES = (Policy(True, True), Policy(False, True), Policy(False, False))


def features(m: Measures, is_known: bool) -> Floats:
    """What the likeness of two participations is measured by."""
    bias = 0.0 if m.bias <= max(SLIGHT, LUCK * m.chance) else m.bias
    noise = math.log10(max(LEAST, m.inflation))
    visits, seen = (
        math.nan if m.planned is None else math.log10(max(LEAST, x * m.planned))
        for x in (1 / m.least_rounds, m.p_avg)
    )
    return np.array([bias, noise, m.mixing, m.round_distance, visits, float(is_known), seen])


def case(x: Floats) -> str:
    """`rare`: the average client is seen less than twice; `even`: no bias, and no stretches; or nothing."""
    if x[FEATURES.index("seen")] < math.log10(TWICE):
        return "rare"
    return "even" if x[FEATURES.index("bias")] == 0 and x[FEATURES.index("stretches")] < MIXED else ""


def alike(lessons: Sequence[Lesson], x: Floats) -> list[Lesson]:
    """The cells of the same case."""
    return [lesson for lesson in lessons if case(lesson.features) == case(x)]


def mean_missing(lessons: Sequence[Lesson], rule: str) -> float:
    """The progress that a rule missed, mean over the cells."""
    return float(np.mean([lesson.missing[rule] for lesson in lessons])) if lessons else 0.0


def choose(lessons: Sequence[Lesson], x: Floats, rules: Sequence[str], how: Policy) -> str:
    """The rule for clients with these features."""
    if not {PLAIN, DEFAULT} <= {*rules}:
        return expected(lessons, x, rules)[0].rule
    if case(x):
        same = alike(lessons, x)
        gain = mean_missing(same, PLAIN) - mean_missing(same, DEFAULT)
        if not same or how.cases:
            return DEFAULT if gain > GAIN else PLAIN
    return expected(lessons, x, rules)[0].rule if how.alike else DEFAULT


def policy(lessons: Sequence[Lesson], rules: Sequence[str]) -> Policy:
    """The first one that, on cells that it has not seen, misses no more than to take `auto` everywhere."""
    if len(lessons) < 2 or DEFAULT not in rules:
        return POLICIES[0]
    always = sum(lesson.missing[DEFAULT] for lesson in lessons)
    tests = ((how, sum(a.missing for a in _held_out(lessons, rules, how))) for how in POLICIES)
    return next((how for how, missed in tests if missed <= always + 1e-9), POLICIES[-1])


def expected(lessons: Sequence[Lesson], x: Floats, rules: Iterable[str]) -> list[Expected]:
    """These rules, the one that is expected to be nearest to the best first."""
    weights = likeness(lessons, x)
    near = lessons[int(weights.argmax())]
    means = {r: float(weights @ [lesson.missing[r] for lesson in lessons]) for r in rules}
    return sorted((Expected(r, mean, near.missing[r]) for r, mean in means.items()), key=lambda e: e.missing)


def likeness(lessons: Sequence[Lesson], x: Floats) -> Floats:
    """(cells,) weights that sum to 1: a normal curve of the mean squared distance, in deviations over the cells."""
    table = np.stack([lesson.features for lesson in lessons])
    spread = np.nanstd(table, axis=0)
    use = np.isfinite(x) & np.isfinite(table).all(axis=0) & (spread > 0)
    if not use.any():
        return np.full(len(lessons), 1 / len(lessons))
    far = np.mean(((table - x)[:, use] / spread[use]) ** 2, axis=1)
    weights = np.exp(-(far - far.min()) / (2 * WIDTH**2))
    return np.asarray(weights / weights.sum())


def held_out(lessons: Sequence[Lesson]) -> list[Advised]:
    """Every cell, advised from the others alone."""
    require(len(lessons) > 1, f"a test on held-out cells needs at least 2 of them, got {len(lessons)}")
    rules = plain(lessons[0].missing)
    return _held_out(lessons, rules, policy(lessons, rules))


def _held_out(lessons: Sequence[Lesson], rules: Sequence[str], how: Policy) -> list[Advised]:
    found = []
    for k, lesson in enumerate(lessons):
        advised = choose([*lessons[:k], *lessons[k + 1 :]], lesson.features, rules, how)
        best = min(lesson.missing, key=lambda r: lesson.missing[r])
        found.append(Advised(lesson.cell, advised, lesson.missing[advised], best))
    return found


def plain(rules: Iterable[str], *, memory: bool = True) -> list[str]:
    """The rules whose clients only train and send; without a memory at the server, if there is no room for it."""
    found = []
    for name in rules:
        strategy = recipe(name).strategy
        if hooks_of(strategy).used() <= SERVER_SIDE and (memory or not isinstance(strategy, KeepsMemory)):
            found.append(name)
    return found


def read(path: Path | None = None) -> list[Lesson]:
    """The lessons in a table, or those that come with the package."""
    own = files("fedstale.lab.advise") / "arena.csv"
    ok = path is None or path.is_file()
    require(ok, f"there is no table {path}; `fedstale arena report --advice` writes one")
    text = (own if path is None else path).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    names = [name for name in (rows[0] if rows else ()) if name not in ("cell", *FEATURES)]
    require(bool(names), f"{path} has no cells and rules; `fedstale arena report --advice` writes such a table")
    for name in names:
        known(name, RECIPES, f"{path or own}: the rule")
    return [
        Lesson(
            row["cell"], np.array([float(row.get(f, "nan")) for f in FEATURES]), {n: float(row[n]) for n in names}
        )
        for row in rows
    ]


def table(lessons: Sequence[Lesson]) -> list[dict[str, str]]:
    """The rows of a table that `read` understands."""
    return [
        {"cell": lesson.cell}
        | {name: f"{x:.4g}" for name, x in zip(FEATURES, lesson.features, strict=True)}
        | {rule: f"{x:.4f}" for rule, x in lesson.missing.items()}
        for lesson in lessons
    ]

"""What the arena taught: how far every rule ended from the best one, in cells that are described by participation.

`fedstale arena report --advice FILE` writes the cells of a contest as a table; that of the standard suite comes
with the package. For other clients the distance of a rule is expected to be its mean over the cells, each weighted
by how alike its participation is; the rule with the least expected distance is recommended. `held_out` tests
that: every cell is advised from the others alone.
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

FEATURES = ("bias", "noise", "stretches", "turns", "visits", "known")
SERVER_SIDE = {"forget", "inverse_weighting", "point"}  # hooks that ask nothing of a client
LUCK = 1.5  # times the bias that chance alone shows in a recording, up to which it may be that
WIDTH = 1.0  # of the weights, in deviations of a feature over the cells
FAR = math.log(
    2
)  # a distance from the best beyond which more makes no difference: objectives near 0 have any ratio
LEAST = 0.01  # of 1 / p_var and of the rarest client's visits: below it, less makes no difference


class Lesson(NamedTuple):
    """A cell of a contest: what its participation is like, and how far each rule was from the best one."""

    cell: str
    features: Floats  # in the order of FEATURES; nan where it is not known
    above: Mapping[str, float]  # by recipe: ln(objective / that of the best rule)


class Expected(NamedTuple):
    """How far a rule is expected to be from the best one, as a share of the objective."""

    rule: str
    above: float
    alike: float  # in the cell that is most alike


class Advised(NamedTuple):
    """A cell that was advised from all others."""

    cell: str
    advised: str
    above: float  # of the advised rule
    best: str


def features(m: Measures, is_known: bool) -> Floats:
    """What the likeness of two participations is measured by."""
    bias = 0.0 if m.bias <= LUCK * m.chance else m.bias
    visits = math.nan if m.planned is None else math.log10(max(LEAST, m.planned / m.least_rounds))
    noise = math.log10(max(LEAST, m.inflation))
    return np.array([bias, noise, m.mixing, m.round_distance, visits, float(is_known)])


def expected(lessons: Sequence[Lesson], x: Floats, rules: Iterable[str]) -> list[Expected]:
    """These rules, the one that is expected to be nearest to the best first."""
    weights = likeness(lessons, x)
    near = lessons[int(weights.argmax())]
    means = {r: float(weights @ [min(lesson.above[r], FAR) for lesson in lessons]) for r in rules}
    found = [Expected(r, math.expm1(mean), math.expm1(near.above[r])) for r, mean in means.items()]
    return sorted(found, key=lambda e: e.above)


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
    found = []
    for k, lesson in enumerate(lessons):
        others = [*lessons[:k], *lessons[k + 1 :]]
        advised = expected(others, lesson.features, plain(lesson.above))[0].rule
        best = min(lesson.above, key=lambda r: lesson.above[r])
        found.append(Advised(lesson.cell, advised, math.expm1(lesson.above[advised]), best))
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
    require(
        path is None or path.is_file(), f"there is no table {path}; `fedstale arena report --advice` writes one"
    )
    text = (own if path is None else path).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    names = [name for name in (rows[0] if rows else ()) if name not in ("cell", *FEATURES)]
    require(bool(names), f"{path} has no cells and rules; `fedstale arena report --advice` writes such a table")
    for name in names:
        known(name, RECIPES, f"{path or own}: the rule")
    return [
        Lesson(row["cell"], np.array([float(row[f]) for f in FEATURES]), {n: float(row[n]) for n in names})
        for row in rows
    ]


def table(lessons: Sequence[Lesson]) -> list[dict[str, str]]:
    """The rows of a table that `read` understands."""
    return [
        {"cell": lesson.cell}
        | {name: f"{x:.4g}" for name, x in zip(FEATURES, lesson.features, strict=True)}
        | {rule: f"{x:.4f}" for rule, x in lesson.above.items()}
        for lesson in lessons
    ]

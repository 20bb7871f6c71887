"""A paper's statements as checks on the rows behind a figure.

A check looks at cases (cells, or pairs of neighbouring cells) and says of each whether the statement
holds, does not, or cannot be told from seed-to-seed chance: a difference counts if a one-sided t-test over
the seeds, paired because every algorithm sees the same draws, gives it at 5 %. A statement holds if at
least half of the cases do (both of two) and at most a tenth do not; it does not hold if more than a tenth do
not; otherwise it is within noise. One seed alone proves nothing. The checks of `pooled` test all cells at once.
A claim about `columns` of the rows compares those as others do algorithms, whose name is then in the column `of`.
A claim with `mean` has one case, the mean of all cells, seed by seed.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Floats, known, require
from fedstale.lab.papers.pooled import OF_FIGURES, SCALES, Compared, lead, lines
from fedstale.lab.papers.rates import Row
from fedstale.lab.runs.statistics import LEVEL, difference, holm, p_value, paired_test, uncertainty

Claim = Mapping[str, Any]
HOLDS, NOISE, FAILS = OUTCOMES = "holds", "within noise", "does not hold"
UNTESTED = "not tested"  # these rows have no cell that the claim is about
KEYS = ("text", "check", "metric", "lower", "where", "first", "second", "margin", "along", "up", "order", "of",
        "between", "share", "columns", "rivals", "scale", "mean")  # fmt: skip


class Verdict(NamedTuple):
    """What came of a claim: in how many cases it holds, cannot be told from noise, or fails."""

    claim: str
    verdict: str
    holds: int
    noise: int
    fails: int
    detail: str
    p: float | None = None  # of a test over all cells, corrected for the figure's other tests


def judge(claims: Sequence[Claim], rows: Sequence[Row]) -> list[Verdict]:
    """A verdict for every claim; a claim that cannot be checked on these rows is refused."""
    for claim in claims:
        require_known(claim)
    pooled = iter(_pooled([claim for claim in claims if claim["check"] in OF_FIGURES], rows))
    return [next(pooled) if claim["check"] in OF_FIGURES else _judge(claim, rows) for claim in claims]


def _pooled(claims: Sequence[Claim], rows: Sequence[Row]) -> list[Verdict]:
    """Verdicts from one number per seed, over all cells; Holm's correction is over all that can be tested."""
    values = [OF_FIGURES[c["check"]](_found(c, rows), c) for c in claims]
    tested = [v for v in values if len(v)]
    for_it, against = (iter(holm([p_value(sign * v) for v in tested]).tolist()) for sign in (1, -1))
    return [
        _told(c, v, next(for_it), next(against)) if len(v) else Verdict(c["text"], UNTESTED, 0, 0, 0, "")
        for c, v in zip(claims, values, strict=True)
    ]


def _told(claim: Claim, values: Floats, p: float, against: float) -> Verdict:
    outcome = HOLDS if p < LEVEL else FAILS if against < LEVEL else NOISE
    holds, noise, fails = (int(outcome == what) for what in OUTCOMES)
    detail = "a run diverged"
    if np.isfinite(values).all():
        size = f"{values.mean():+.4g} ± {uncertainty(values):.2g}"
        detail = f"{claim['check'].replace('_', ' ')} {size} over {len(values)} seeds"
    return Verdict(claim["text"], outcome, holds, noise, fails, detail, p)


def _found(claim: Claim, rows: Sequence[Row]) -> list[Compared]:
    """The cells that a claim is about, with all algorithms that it names; or their mean."""
    named = {*claim.get("rivals", []), *(claim[key] for key in ("first", "second") if key in claim)}
    found = [c for c in cells(claim, rows) if _inside(c, claim.get("where", {})) and named <= c.values.keys()]
    if not claim.get("mean") or not found:
        return found
    return [Compared({}, {name: np.mean([c.values[name] for c in found], axis=0) for name in named}, {})]


def _judge(claim: Claim, rows: Sequence[Row]) -> Verdict:
    found = _found(claim, rows)
    if check := OF_CELLS.get(claim["check"]):
        cases = [check(cell, claim) for cell in found]
    else:
        cases = [case for pair in neighbours(found, claim) for case in OF_PAIRS[claim["check"]](*pair, claim)]
    holds, noise, fails = (sum(case.outcome == what for case in cases) for what in (HOLDS, NOISE, FAILS))
    overall = _overall(holds, noise, fails, claim.get("share"))
    return Verdict(claim["text"], overall, holds, noise, fails, _detail(cases))


def require_known(claim: Claim) -> None:
    """Refuse a claim with an unknown key or check."""
    for key in claim:
        known(key, dict.fromkeys(KEYS), "the key of a claim")
    check = known(claim.get("check"), {**OF_CELLS, **OF_PAIRS, **OF_FIGURES}, "check")
    ok = "second" in claim or check not in ("above", "near", "gap_trend", "mean_lead")
    require(ok, f"check {check!r} needs a `second` to compare with `first`, got none in {claim['text']!r}")
    known(claim.get("scale", "value"), SCALES, "scale")


def _overall(holds: int, noise: int, fails: int, share: float | None) -> str:
    n = holds + noise + fails
    if n == 0:
        return UNTESTED
    if share is not None:
        return HOLDS if holds >= share * n else NOISE if holds + noise >= share * n else FAILS
    enough = n if n == 2 else n / 2  # one of two would hold by luck in 9 % of all figures
    return FAILS if fails > n / 10 else HOLDS if holds >= enough else NOISE


class Case(NamedTuple):
    """One comparison that a claim makes."""

    outcome: str
    size: float = math.nan  # of the difference, where there is one
    measured: bool | None = None  # whether the means alone say so, where that is another question


def _detail(cases: Sequence[Case]) -> str:
    if cases and cases[0].measured is not None:
        return f"going by the means alone, {sum(bool(c.measured) for c in cases)} of {len(cases)}"
    sizes = [c.size for c in cases if math.isfinite(c.size)]
    if not sizes:
        return ""
    return f"mean difference {np.mean(sizes):+.4g}, from {min(sizes):+.4g} to {max(sizes):+.4g}"


def cells(claim: Claim, rows: Sequence[Row]) -> list[Compared]:
    """The rows by cell, each algorithm's values in the order of the seeds; or, for `columns`, each column's."""
    if "columns" in claim:
        plain = {key: value for key, value in claim.items() if key != "columns"} | {"metric": "value"}
        return cells(plain, [*_columns(rows, claim["columns"])])
    metric, sign = claim.get("metric", "accuracy_last10"), -1.0 if claim.get("lower") else 1.0
    found: dict[str, Compared] = {}
    for row in rows:
        cell = found.setdefault(repr(row.place), Compared(row.place, {}, {}))
        if (asked := metric.rpartition("_at_")[2]).isdigit() and int(asked) > row.rounds:
            continue  # the run ends before
        require(row.diverged or metric in row.values, f"claim {claim['text']!r}: the rows have no {metric!r}")
        value = -math.inf if row.diverged else sign * float(row.values[metric])
        cell.values[row.algorithm] = np.append(cell.values.get(row.algorithm, []), value)
        if "of" in claim:
            cell.numbers[row.algorithm] = float((row.settings | row.tuned)[claim["of"]])
    return list(found.values())


def _columns(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Row]:
    """Each column of each row that has it as a row of its own, with the column's name as the algorithm's."""
    for name in names:
        require(any(row.diverged or name in row.values for row in rows), f"the rows have no {name!r}")
    for row, name in itertools.product(rows, names):
        if row.diverged or row.values.get(name) is not None:  # else there was nothing to measure in this run
            place = row.place | {"of": row.algorithm}
            yield row._replace(place=place, algorithm=name, values={"value": row.values.get(name)})


def _inside(cell: Compared, where: Mapping[str, Any]) -> bool:
    """`where` names a value of a column, some words of it, or the least and the largest of a numeric one."""
    for key, wanted in where.items():
        value, some = cell.place.get(key), wanted if isinstance(wanted, list) else [wanted]
        words = some is not wanted or isinstance(wanted[0], str)
        if not (value in some if words else some[0] <= value <= some[1]):
            return False
    return True


def outcome(differences: Floats, margin: float = 0.0) -> Case:
    """Whether a difference, paired over the seeds, is above -margin beyond chance."""
    return Case(OUTCOMES[1 - paired_test(differences, margin)], float(differences.mean()))


def between(values: Floats, low: float, high: float) -> Case:
    """Whether the mean over the seeds lies between two numbers, outside of them beyond chance, or neither."""
    mean, room = float(values.mean()), uncertainty(values)
    ok = HOLDS if low <= mean <= high else NOISE if low - room <= mean <= high + room else FAILS
    return Case(ok, mean)


def above(c: Compared, claim: Claim) -> Case:
    """`first` is better than `second`, by more than -margin."""
    return outcome(lead(c, claim), claim.get("margin", 0.0))


def near(c: Compared, claim: Claim) -> Case:
    """`first` and `second` differ by at most `margin`."""
    return between(lead(c, claim), -claim["margin"], claim["margin"])


def near_best(c: Compared, claim: Claim) -> Case:
    """`first` is behind the best algorithm by at most `margin`."""
    return between(lead(c, {**claim, "second": best(c)}), -claim["margin"], math.inf)


def ahead(c: Compared, claim: Claim) -> Case:
    """`first` is better than the best of `rivals`, which is chosen with hindsight in each cell."""
    rivals = c._replace(values={name: c.values[name] for name in claim["rivals"]})
    return outcome(lead(c, {**claim, "second": best(rivals)}))


def not_worse(c: Compared, claim: Claim) -> Case:
    """`first` is not behind the best of `rivals` beyond chance."""
    case = ahead(c, claim)
    return case._replace(outcome=FAILS if case.outcome == FAILS else HOLDS)


def within(c: Compared, claim: Claim) -> Case:
    """The mean of `first` is `between` two numbers."""
    return between(c.values[claim["first"]], *claim["between"])


def best_share(c: Compared, claim: Claim) -> Case:
    """The `of` of the best algorithm is `between` two numbers, whichever of the nearly best it is."""
    low, high = claim["between"]
    inside = [low <= c.numbers[name] <= high for name in nearly_best(c)]
    ok = HOLDS if all(inside) else NOISE if any(inside) else FAILS
    return Case(ok, measured=low <= c.numbers[best(c)] <= high)


def trend(low: Compared, high: Compared, claim: Claim) -> list[Case]:
    """Every algorithm gets better (or, without `up`, worse) from one value of `along` to the next."""
    return [outcome(difference(high.values[name], low.values[name])) for name in low.values]


def gap_trend(low: Compared, high: Compared, claim: Claim) -> list[Case]:
    """The lead of `first` over `second` grows (or shrinks) from one value of `along` to the next."""
    return [outcome(difference(lead(high, claim), lead(low, claim)))]


def best_trend(low: Compared, high: Compared, claim: Claim) -> list[Case]:
    """The `of` of the best algorithm does not fall (or rise) from one value of `along` to the next.

    It holds if that is so whichever of the nearly best is the best, and fails if it is so for none.
    """
    before, after = ([c.numbers[name] for name in nearly_best(c)] for c in (low, high))
    ok = HOLDS if min(after) >= max(before) else FAILS if max(after) < min(before) else NOISE
    return [Case(ok, measured=high.numbers[best(high)] >= low.numbers[best(low)])]


def loss_to_best(low: Compared, high: Compared, claim: Claim) -> list[Case]:
    """`first` is farther behind the best algorithm from one value of `along` to the next."""
    before, after = (lead(c, {**claim, "second": best(c)}) for c in (low, high))
    return [outcome(difference(before, after))]


OF_CELLS = {check.__name__: check for check in (above, near, near_best, ahead, not_worse, within, best_share)}
OF_PAIRS = {check.__name__: check for check in (trend, gap_trend, best_trend, loss_to_best)}


def best(cell: Compared) -> str:
    """The algorithm of the best mean; of equals, the first."""
    return max(cell.values, key=lambda name: float(cell.values[name].mean()))


def nearly_best(cell: Compared) -> list[str]:
    """Those that chance does not tell from the best."""
    top = cell.values[best(cell)]
    return [name for name, values in cell.values.items() if outcome(difference(top, values)).outcome != HOLDS]


def neighbours(found: Sequence[Compared], claim: Claim) -> Iterator[tuple[Compared, Compared]]:
    """Pairs of cells that differ in `along` only: its values ascending, or as the claim orders them.

    They are turned round for a claim without `up`, so that every claim says that the second is the larger.
    """
    along = claim["along"]
    for line in lines(found, along):
        order = claim.get("order") or sorted(c.place[along] for c in line)
        at = {c.place[along]: c for c in line}
        for here, there in itertools.pairwise(at[value] for value in order if value in at):
            yield (here, there) if claim.get("up", True) else (there, here)

"""Tests over all cells of a figure at once: a trend or an order that no single cell can show beyond chance.

The unit is the seed: each gives one number over all cells (a mean difference, or a slope), and a t-test over the
seeds says whether it is above 0. Cells of one seed share draws, so they do not count as independent. A figure's
tests share one chance of error, 5 %, by Holm's correction. A slope `along` words, such as panels, takes them in the
claim's `order`, one apart: with two of them it is the difference between the second and the first.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Floats, require
from fedstale.lab.runs.query import grouped
from fedstale.lab.runs.statistics import difference

SCALES: Mapping[str, Callable[[float], float]] = {  # of the setting along which a slope is measured
    "value": float,
    "ln_ratio": lambda p_min: math.log((1 + p_min) / (2 * p_min)),  # ln(p_avg / p_min) of two equal groups
}


class Compared(NamedTuple):
    """What one cell says about the algorithms that a claim compares."""

    place: dict[str, Any]  # grid settings, and the panel
    values: dict[str, Floats]  # of each algorithm (seeds,), larger is better; -inf where a run diverged
    numbers: dict[str, float]  # of each algorithm: its beta, or whatever the claim is of


def lead(c: Compared, claim: Mapping[str, Any]) -> Floats:
    """(seeds,) by how much `first` is better than `second`."""
    return difference(c.values[claim["first"]], c.values[claim["second"]])


def mean_lead(cells: Sequence[Compared], claim: Mapping[str, Any]) -> Floats:
    """(seeds,) by how much `first` is better than `second`, on average over the cells; empty without cells."""
    leads = [lead(c, claim) for c in cells]
    return np.asarray(np.mean(leads, axis=0) + claim.get("margin", 0.0)) if leads else np.empty(0)


def lead_slope(cells: Sequence[Compared], claim: Mapping[str, Any]) -> Floats:
    """(seeds,) slope of the lead of `first` over `second` along a setting, on average over the other settings.

    Without a `second` it is the slope of `first` alone.
    """
    return _slope(cells, claim, lambda c: lead(c, claim) if "second" in claim else c.values[claim["first"]])


def best_slope(cells: Sequence[Compared], claim: Mapping[str, Any]) -> Floats:
    """(seeds,) slope of the best `of`, such as β, along a setting, on average over the other settings."""
    return _slope(cells, claim, _vertices)


def _vertices(c: Compared) -> Floats:
    """(seeds,) where a parabola through the values over the algorithms' numbers is highest, within their range."""
    names = sorted(c.values, key=lambda name: c.numbers[name])
    x, table = np.array([c.numbers[name] for name in names]), np.stack([c.values[name] for name in names])
    require(len(names) >= 3, f"a parabola needs at least 3 algorithms in a cell, got {len(names)}")
    if not np.isfinite(table).all():  # a run diverged
        return np.full(table.shape[1], np.nan)
    a, b, _ = np.polyfit(x, table, 2)  # (seeds,) each
    ends = x[[0, -1]][np.argmax(table[[0, -1]], axis=0)]  # where the parabola opens upwards
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(a < 0, np.clip(-b / (2 * a), x[0], x[-1]), ends))


def lines(cells: Iterable[Compared], along: str) -> list[list[Compared]]:
    """The cells that differ in the setting `along` alone, together."""
    rest = grouped(cells, lambda c: repr({key: value for key, value in c.place.items() if key != along}))
    return list(rest.values())


def _slope(cells: Sequence[Compared], claim: Mapping[str, Any], of: Callable[[Compared], Floats]) -> Floats:
    along, order = claim["along"], claim.get("order")
    scale: Callable[[Any], float] = order.index if order else SCALES[claim.get("scale", "value")]
    cells = [c for c in cells if not order or c.place[along] in order]
    long = [line for line in lines(cells, along) if len(line) > 1]
    if not long:
        return np.empty(0)  # no two cells differ in it alone
    slopes = [_line([scale(c.place[along]) for c in line], np.stack([of(c) for c in line])) for line in long]
    return np.asarray(np.mean(slopes, axis=0) * (1 if claim.get("up", True) else -1))


def _line(x: Sequence[float], table: Floats) -> Floats:
    """(seeds,) the slope of each column of the table over x; nan if a run diverged."""
    return np.polyfit(x, table, 1)[0] if np.isfinite(table).all() else np.full(table.shape[1], np.nan)


OF_FIGURES = {check.__name__: check for check in (mean_lead, lead_slope, best_slope)}

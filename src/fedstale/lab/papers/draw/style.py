"""What the figures of all papers share: styles of lines, curves over rounds, points over settings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from fedstale.core import Floats
from fedstale.lab.papers.rates import Row
from fedstale.lab.runs import query
from fedstale.lab.runs.metrics import metric
from fedstale.lab.runs.statistics import spread
from fedstale.view.plots.palette import Look, looks
from fedstale.view.plots.pictures import curve, finish

About = Mapping[str, Any]  # the table [figure]


def subplots(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """A figure of `size` inches and its axes (rows, columns); it leaves matplotlib's backend as it is."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def by(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows grouped by the values of some columns, in the order in which these come."""
    columns = {id(row): row.columns() for row in rows}
    return query.grouped(rows, lambda row: tuple(columns[id(row)].get(key, "") for key in keys))


def ends(rows: Sequence[Row], name: str) -> list[float]:
    """The values of a column in the runs that did not diverge."""
    return [row.values[name] for row in rows if not row.diverged]


def levels(rows: Sequence[Row], key: str) -> list[float]:
    """The values of a grid setting in ascending heterogeneity: for p_min from the largest to the smallest."""
    return sorted({row.place[key] for row in rows}, reverse=key == "p_min")


def ratio(p_min: float) -> float:
    """p_avg / p_min where half of the clients are always available."""
    return round((1 + p_min) / 2 / p_min, 2)


def heterogeneity_axes(axes: Any, p: Sequence[float], q: Sequence[float]) -> None:
    """Ticks at the columns p_avg / p_min and the lines σ̂² of a table of cells."""
    axes.set_xticks(range(len(p)), [f"{ratio(x):g}" for x in p])
    axes.set_yticks(range(len(q)), [f"{y:g}" for y in q])


def series(rows: Sequence[Row], name: str) -> tuple[list[int], Floats]:
    """The evaluated rounds, and the values (seeds, rounds) of the runs that did not diverge."""
    return query.curve([row.run.metrics() for row in rows if not row.diverged], name)


def _looks(rows: Sequence[Row]) -> dict[str, Look]:
    return looks([label for (label,) in by(rows, "algorithm")])


def learning_curves(axes: Any, rows: Sequence[Row], name: str, log: bool = False) -> None:
    """A curve per algorithm with a band of one standard deviation over the seeds."""
    drawn = _looks(rows)
    for (label,), group in by(rows, "algorithm").items():
        rounds, values = series(group, name)
        if rounds:
            curve(axes, label, rounds, values, drawn[label])
        else:
            axes.plot([], [], label=f"{label} (diverged)", **drawn[label].line)
    finish(axes, metric(name), log)


def points(axes: Any, rows: Sequence[Row], along: Callable[[Row], float], name: str) -> None:
    """Mean and standard deviation over the seeds of an accuracy, over a setting."""
    drawn = _looks(rows)
    for (label,), group in by(rows, "algorithm").items():
        at = query.grouped(sorted((r for r in group if not r.diverged), key=along), along)
        found = [spread([100 * row.values[name] for row in some]) for some in at.values()]
        marks = drawn[label].line | {"marker": drawn[label].marker, "markersize": 4, "capsize": 2}
        axes.errorbar(list(at), [f.mean for f in found], yerr=[f.std for f in found], label=label, **marks)
    axes.set_ylabel(metric("accuracy").axis)
    axes.grid(alpha=0.25)

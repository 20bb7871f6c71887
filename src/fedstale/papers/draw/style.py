"""What all figures of papers share: how a line looks, what stands beneath, how a file is written."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedstale.core import Floats
from fedstale.plots.comparison import curve, finish
from fedstale.plots.palette import look
from fedstale.runs import query
from fedstale.runs.metrics import metric
from fedstale.runs.statistics import spread
from fedstale.runs.store import RunFolder

Row = Mapping[str, Any]


def subplots(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """A figure of `size` inches and its axes (rows, columns); it leaves matplotlib's backend as it is."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def save(figure: Any, path: Path, title: str, note: str) -> None:
    """Title above, and beneath what was reduced, so that the picture alone does not mislead."""
    width = figure.get_figwidth()  # inches
    figure.suptitle("\n".join(textwrap.wrap(title, int(width * 13))), fontsize=10)
    if note:
        figure.supxlabel(
            "\n".join(textwrap.wrap(f"Reduced: {note}.", int(width * 18))), fontsize=7, color="#444444"
        )
    figure.draw_without_rendering()  # the layout depends on labels that are known only now
    figure.savefig(path, dpi=200, metadata={"Software": None} if path.suffix == ".png" else None)


def by(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the values of some columns, in the order in which these come."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key, "") for key in keys), []).append(row)
    return groups


def series(rows: Sequence[Row], folder: Path, name: str) -> tuple[list[int], Floats]:
    """The evaluated rounds, and the values (seeds, rounds) of the runs that did not diverge."""
    return query.curve([RunFolder(folder / row["run"]).metrics() for row in rows if not row["diverged"]], name)


def learning_curves(axes: Any, rows: Sequence[Row], folder: Path, name: str, log: bool = False) -> None:
    """A curve per algorithm with a band of one standard deviation over the seeds."""
    for k, ((label,), group) in enumerate(by(rows, "algorithm").items()):
        rounds, values = series(group, folder, name)
        if rounds:
            curve(axes, label, rounds, values, look(k), log)
        else:
            axes.plot([], [], label=f"{label} (diverged)", **look(k).line)
    finish(axes, metric(name), log)


def points(axes: Any, rows: Sequence[Row], along: str, name: str) -> None:
    """Mean and standard deviation over the seeds of an accuracy, over a setting."""
    for k, ((label,), group) in enumerate(by(rows, "algorithm").items()):
        at = {key: [row[name] for row in some if not row["diverged"]] for (key,), some in by(group, along).items()}
        ends = {key: spread(100 * np.array(values)) for key, values in sorted(at.items()) if values}
        means, stds = [e.mean for e in ends.values()], [e.std for e in ends.values()]
        marks = {"marker": look(k).marker, "markersize": 4, "capsize": 2}
        axes.errorbar(list(ends), means, yerr=stds, label=label, **marks, **look(k).line)
    axes.set_ylabel(metric("accuracy").axis)
    axes.grid(alpha=0.25)

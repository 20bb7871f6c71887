"""What all figures of papers share: how a line looks, what stands beneath, how a file is written."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt

from fedstale.plots.comparison import COLOURS, DASHES
from fedstale.runs.metrics import metric
from fedstale.runs.statistics import spread
from fedstale.runs.store import RunFolder

Row = Mapping[str, Any]
MARKS = "osD^vPX*"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "fedstale",
}


def style(k: int) -> dict[str, Any]:
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k % len(DASHES)], "linewidth": 1.4}


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
    plt.close(figure)


def by(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the values of some columns, in the order in which these come."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key, "") for key in keys), []).append(row)
    return groups


def series(rows: Sequence[Row], folder: Path, name: str) -> tuple[list[int], npt.NDArray[np.float64]]:
    """The evaluated rounds, and the values (seeds, rounds) of the runs that did not diverge."""
    runs = [RunFolder(folder / row["run"]).metrics() for row in rows if not row["diverged"]]
    if not runs:
        return [], np.empty((0, 0))
    rounds = [line["round"] for line in runs[0] if name in line]
    return rounds, np.array([[line[name] for line in run if name in line] for run in runs])


def learning_curves(axes: Any, rows: Sequence[Row], folder: Path, name: str, log: bool = False) -> None:
    """A curve per algorithm with a band of one standard deviation over the seeds."""
    for k, ((label,), group) in enumerate(by(rows, "algorithm").items()):
        rounds, values = series(group, folder, name)
        if not rounds:
            axes.plot([], [], label=f"{label} (diverged)", **style(k))
            continue
        mean, std, _ = spread(values)
        axes.plot(rounds, mean, label=label, **style(k))
        low = np.maximum(mean - std, values.min(axis=0)) if log else mean - std
        axes.fill_between(rounds, low, mean + std, color=style(k)["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel(metric(name).axis)
    if metric(name).percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")
    if log:
        axes.set_yscale("log")
    axes.grid(alpha=0.25)


def points(axes: Any, rows: Sequence[Row], along: str, name: str) -> None:
    """Mean and standard deviation over the seeds of an accuracy, over a setting."""
    for k, ((label,), group) in enumerate(by(rows, "algorithm").items()):
        at = {key: [row[name] for row in some if not row["diverged"]] for (key,), some in by(group, along).items()}
        ends = {key: spread(100 * np.array(values)) for key, values in sorted(at.items()) if values}
        means, stds = [e.mean for e in ends.values()], [e.std for e in ends.values()]
        axes.errorbar(
            list(ends), means, yerr=stds, label=label, marker=MARKS[k], markersize=4, capsize=2, **style(k)
        )
    axes.set_ylabel(metric("accuracy").axis)
    axes.grid(alpha=0.25)

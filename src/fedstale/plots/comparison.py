"""The picture of a comparison: a curve per algorithm, and beneath it who took part."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fedstale.core import Floats, require
from fedstale.plots import raster
from fedstale.plots.palette import DARK, STYLE, Look, looks
from fedstale.runs import metrics, query
from fedstale.runs.metrics import Metric
from fedstale.runs.query import Line
from fedstale.runs.statistics import spread
from fedstale.runs.store import RunFolder


class HasRuns(Protocol):
    """What `fs.compare` returns."""

    @property
    def runs(self) -> Sequence[RunFolder]: ...


def plot(source: str | PathLike[str] | HasRuns, setting: int = 0) -> Figure:
    """The picture of the finished runs in a folder or of a comparison, made by pyplot: a notebook shows it.

    Where the folder holds several settings (data, participation, rounds), `setting` chooses one, from 0.
    """
    from matplotlib import pyplot  # it chooses the backend, which a command must not

    found = query.settings(query.find(Path(source)).runs if isinstance(source, str | PathLike) else source.runs)
    require(0 <= setting < len(found), f"setting must be from 0 to {len(found) - 1}, got {setting}")
    config, groups = found[setting]
    read = _readable({g.label: [run.folder for run in g.runs] for g in groups})
    require(bool(read), f"there is no finished run to plot in setting {setting}; resume=True or --resume goes on")
    data = config["data"]
    title = f"{data.get('dataset', '?')}, {data.get('clients', '?')} clients, {config['rounds']} rounds"
    return figure(read, groups[0].config, title, pyplot.figure)


def comparison(groups: Mapping[str, Sequence[RunFolder]], title: str, path: Path) -> None:
    """Write the picture of these runs, by the label of their algorithm."""
    if found := _readable(groups):
        figure(found, next(iter(groups.values()))[0].config(), title).savefig(path, dpi=160)


def _readable(groups: Mapping[str, Sequence[RunFolder]]) -> dict[str, list[list[Line]]]:
    read = {label: [query.readable(run) for run in runs] for label, runs in groups.items()}
    return {label: [lines for lines in seeds if lines] for label, seeds in read.items() if any(seeds)}


def figure(
    groups: Mapping[str, Sequence[list[Line]]],
    config: Mapping[str, Any],
    title: str,
    new: Callable[..., Figure] = Figure,
) -> Figure:
    """Mean over seeds with a band of one standard deviation, metric by metric; the raster is the first seed's."""
    first = next(iter(groups.values()))[0]
    found, drawn = metrics.shown(first[-1]), looks(list(groups))
    with matplotlib.rc_context(STYLE):
        out = new(figsize=(4.5 * max(len(found), 2), 6), layout="constrained")
        grid = out.add_gridspec(2, max(len(found), 1), height_ratios=[3, 1.3])
        for k, m in enumerate(found):
            axes = out.add_subplot(grid[0, k])
            for label, seeds in groups.items():
                curve(axes, label, *query.curve(seeds, m.name), drawn[label])
            finish(axes, m, log=not m.percent and _wide(axes))
            if k == 0:
                axes.legend()
        _participants(out.add_subplot(grid[1, :]), config, first)
        out.suptitle(title, fontsize=10)
    return out


def curve(axes: Any, label: str, rounds: Sequence[int], values: Floats, look: Look, log: bool = False) -> None:
    """The mean of (seeds, rounds) and, with several seeds, a band of one standard deviation around it."""
    mean, std, seeds = spread(values)
    axes.plot(rounds, mean, label=label, **look.line)
    if seeds > 1:
        low = np.maximum(mean - std, values.min(axis=0)) if log else mean - std  # a logarithm ends above 0
        axes.fill_between(rounds, low, mean + std, color=look.colour, alpha=0.15, linewidth=0)


def finish(axes: Any, m: Metric, log: bool = False) -> None:
    """Label the axes of curves of a metric."""
    axes.set(xlabel="round", ylabel=m.axis)
    if m.percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{m.scale * value:g}")
    if log:
        axes.set_yscale("log")
    axes.grid(alpha=0.25)


def _wide(axes: Any) -> bool:
    """Whether the curves span more than a factor of ten."""
    values = np.concatenate([line.get_ydata() for line in axes.lines])
    return bool(values.min() > 0 and values.max() > 10 * values.min())


def _participants(axes: Any, config: Mapping[str, Any], lines: Sequence[Line]) -> None:
    """Client by round; where the metrics do not name the clients, how many took part."""
    if query.names_clients(lines):
        raster.draw(axes, query.presence(config, lines))
        axes.set_ylabel("client heard from")
    else:
        axes.plot([line["round"] for line in lines], [line["participants"] for line in lines], color=DARK)
        axes.set(xlabel="round", ylabel="clients heard from")

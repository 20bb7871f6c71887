"""Pictures of runs: a curve per algorithm and beneath it who took part; and the decisions of one run.

The latter, clients × rounds with who was heard from, not selected or lost, is after fig. 2.5 of Rodio, Client
heterogeneity in federated learning systems, thesis, 2024.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import matplotlib
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedstale.core import Floats, require, shown
from fedstale.lab.runs import metrics, named, query
from fedstale.lab.runs.metrics import Metric
from fedstale.lab.runs.query import AWAY, HEARD, LOST, NOT_SELECTED, Line, States
from fedstale.lab.runs.statistics import block_means, spread, thinned
from fedstale.lab.runs.store import RunFolder
from fedstale.lab.runs.verdict import Halves, halves
from fedstale.view.plots.palette import DARK, GREY, ORANGE, PINK, STYLE, VERMILION, Look, looks

COLOURS = {AWAY: "#FFFFFF", HEARD: DARK, NOT_SELECTED: ORANGE, LOST: PINK}
NAMES = {HEARD: "heard from", NOT_SELECTED: "there, but not selected", LOST: "asked, but lost", AWAY: "away"}
CLIENTS, ROUNDS = 1024, 2000  # cells that a picture shows apart: of more clients some, of more rounds blocks


@runtime_checkable
class HasRuns(Protocol):
    """What `fs.compare` returns."""

    @property
    def runs(self) -> Sequence[RunFolder]: ...


def plot(source: str | PathLike[str] | HasRuns, setting: int = 0) -> Figure:
    """The picture of the finished runs in a folder or of a comparison, made by pyplot: a notebook shows it.

    Where the folder holds several settings (data, participation, rounds), `setting` chooses one, from 0.
    """
    from matplotlib import pyplot  # it chooses the backend, which a command must not

    # loads the backend, which may set `interactive`: our style would put it back
    pyplot.draw_if_interactive()  # type: ignore[no-untyped-call]
    ok = isinstance(source, str | PathLike | HasRuns)
    require(ok, f"source must be a folder or what fs.compare returns, got {shown(source)}")
    found = query.settings(named.find(Path(source)).runs if isinstance(source, str | PathLike) else source.runs)
    ok = isinstance(setting, int) and 0 <= setting < len(found)
    require(ok, f"setting must be from 0 to {len(found) - 1}, got {shown(setting)}")
    config, groups = found[setting]
    folders = {g.label: [run.folder for run in g.runs] for g in groups}
    read = _readable(folders)
    require(bool(read), f"there is no finished run to plot in setting {setting}; resume=True or --resume goes on")
    data = config["data"]
    title = f"{data.get('dataset', '?')}, {data.get('clients', '?')} clients, {config['rounds']} rounds"
    out = figure(read, groups[0].config, title, pyplot.figure, _behind(folders, read))
    out._ipython_display_ = partial(_shown_once, out)  # type: ignore[attr-defined]
    return out


def _shown_once(out: Figure) -> None:
    """Take the figure from pyplot when a notebook shows it, or the end of the cell would show it again.

    NotImplementedError tells IPython to show it as any other figure.
    """
    from matplotlib import pyplot

    if "inline" in matplotlib.get_backend():
        pyplot.close(out)
    raise NotImplementedError


def comparison(groups: Mapping[str, Sequence[RunFolder]], title: str, path: Path) -> None:
    """Write the picture of these runs, by the label of their algorithm."""
    words = {query.label_in_words(label): runs for label, runs in groups.items()}
    groups = words if len(words) == len(groups) else groups  # long lists are cut, so that two may have the same
    if found := _readable(groups):
        config = next(iter(groups.values()))[0].config()
        figure(found, config, title, behind=_behind(groups, found)).savefig(path, dpi=160)


def _readable(groups: Mapping[str, Sequence[RunFolder]]) -> dict[str, list[list[Line]]]:
    read = {label: [query.readable(run) for run in runs] for label, runs in groups.items()}
    return {label: [lines for lines in seeds if lines] for label, seeds in read.items() if any(seeds)}


def _behind(folders: Mapping[str, Sequence[RunFolder]], read: Mapping[str, list[list[Line]]]) -> dict[str, Halves]:
    """Of each algorithm how well both halves of the clients are served; nothing where one of them is not known."""
    same = all(len(folders[label]) == len(seeds) for label, seeds in read.items())
    found = {k: halves(list(zip(folders[k], of, strict=True))) for k, of in read.items()} if same else {}
    known = {label: both for label, both in found.items() if both}
    return known if len(known) == len(read) else {}


def figure(
    groups: Mapping[str, Sequence[list[Line]]],
    config: Mapping[str, Any],
    title: str,
    new: Callable[..., Figure] = Figure,
    behind: Mapping[str, Halves] = {},
) -> Figure:
    """Mean over seeds with a band of one standard deviation, metric by metric; the raster is the first seed's.

    `behind` has the score of both halves of the clients, which is drawn beside the curves.
    """
    first = next(iter(groups.values()))[0]
    found, drawn = metrics.shown(first[-1], main=config.get("main")), looks(list(groups))
    with matplotlib.rc_context(STYLE):
        panels = len(found) + bool(behind)
        out = new(figsize=(4.5 * max(panels, 2), 6), layout="constrained")
        grid = out.add_gridspec(2, max(panels, 1), height_ratios=[3, 1.3])
        for k, m in enumerate(found):
            axes = out.add_subplot(grid[0, k])
            for label, seeds in groups.items():
                rounds, values = query.curve(seeds, m.name)
                curve(axes, label, hours(seeds, rounds) or rounds, values, drawn[label], m.percent)
            finish(axes, m, log=not m.percent and _wide(axes))
            if "seconds" in first[-1]:
                axes.set_xlabel("hours")
            if k == 0:
                axes.legend()
        if behind:
            served(out.add_subplot(grid[0, len(found)]), behind)
        _participants(out.add_subplot(grid[1, :]), config, first)
        out.suptitle(title, fontsize=10)
    return out


def curve(
    axes: Any, label: str, rounds: Sequence[float], values: Floats, look: Look, percent: bool = False
) -> None:
    """The mean of (seeds, rounds) and, with several seeds, a band of one standard deviation around it."""
    mean, std, seeds = spread(values)
    axes.plot(rounds, mean, label=label, **look.line)
    if seeds > 1:
        low, high = mean - std, mean + std
        high = np.minimum(high, 1) if percent else high
        low = low if percent else np.maximum(low, values.min(axis=0))  # a logarithm ends above 0
        axes.fill_between(rounds, low, high, color=look.colour, alpha=0.15, linewidth=0)


def hours(seeds: Sequence[list[Line]], rounds: Sequence[int]) -> list[float]:
    """When these rounds ended, the mean over the seeds of runs with a clock; nothing without one."""
    if not all("seconds" in lines[-1] for lines in seeds):
        return []
    return [float(np.mean([lines[t - 1]["seconds"] for lines in seeds])) / 3600 for t in rounds]


def served(axes: Any, behind: Mapping[str, Halves]) -> None:
    """Of each algorithm the score of the clients that come often, and of those that come rarely."""
    places, m = range(len(behind))[::-1], next(iter(behind.values())).by  # the first at the top
    often, rare = ([m.scale * x for x in values] for values in zip(*(h[:2] for h in behind.values()), strict=True))
    axes.hlines(places, often, rare, color=GREY, linewidth=2)
    axes.plot(often, places, "o", color=DARK, markersize=8, label="clients that come often")
    axes.plot(rare, places, "D", color=VERMILION, markersize=8, label="clients that come rarely")
    for place, value in zip(places, rare, strict=True):
        axes.annotate(
            f"{value:{'.0f' if m.percent else '.3g'}}", (value, place), xytext=(0, 7),
            textcoords="offset points", ha="center", fontsize=8,
        )  # fmt: skip
    axes.set(xlabel=f"final {m.axis}", ylim=(-0.6, len(behind) - 0.3))
    axes.set_yticks(list(places), list(behind))
    axes.grid(alpha=0.25, axis="x")
    axes.legend(loc="lower left")
    axes.set_title("who is left behind", fontsize=9)


def finish(axes: Any, m: Metric, log: bool = False) -> None:
    """Label the axes of curves of a metric."""
    axes.set(xlabel="round", ylabel=m.axis)
    if m.percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{m.scale * value:g}")
    if log:
        logarithmic(axes)
    axes.grid(alpha=0.25)


def logarithmic(axes: Any) -> None:
    """A logarithmic y-axis with plain numbers: 0.2 and not 2 × 10⁻¹; decades alone where there are many."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    some = (1.0, 2.0, 5.0) if high < 1e4 * low else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=some))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _wide(axes: Any) -> bool:
    """Whether the curves span more than a factor of ten."""
    values = np.concatenate([line.get_ydata() for line in axes.lines])
    return bool(len(values) and values.min() > 0 and values.max() > 10 * values.min())


def _participants(axes: Any, config: Mapping[str, Any], lines: Sequence[Line]) -> None:
    """Client by round; where the metrics do not name the clients, how many took part."""
    if query.names_clients(lines):
        draw_presence(axes, query.presence(config, lines))
        axes.set_ylabel("client heard from")
    else:
        axes.plot([line["round"] for line in lines], [line["participants"] for line in lines], color=DARK)
        axes.set(xlabel="round", ylabel="clients heard from")


def draw_presence(axes: Any, states: States, most: tuple[int, int] = (CLIENTS, ROUNDS)) -> int:
    """Paint the states (clients, rounds) and return how many clients are drawn.

    Of more clients than `most` evenly spaced ones are drawn; of more rounds a cell mixes the colours of a block.
    """
    n, rounds = states.shape
    kept = thinned(n, most[0])
    image = np.ones((len(kept), min(rounds, most[1]), 3))
    for state in (HEARD, NOT_SELECTED, LOST):
        _, share = block_means(states[kept] == state, most[1])
        image = image[:, : share.shape[1]] - share[..., None] * (1 - np.array(to_rgb(COLOURS[state])))
    axes.imshow(image.clip(0, 1), aspect="auto", interpolation="nearest", origin="lower",
                extent=(0.5, rounds + 0.5, -0.5, n - 0.5))  # fmt: skip
    axes.set(xlabel="round", ylabel="client")
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)  # there is no client 2.5
    return len(kept)


def patches(names: Mapping[int, str]) -> list[Patch]:
    """The legend of a raster: a name for each state."""
    return [Patch(facecolor=COLOURS[state], edgecolor=GREY, label=name) for state, name in names.items()]


def decisions(run: RunFolder, path: Path) -> None:
    """Write the picture of a run, finished or not."""
    decisions_figure(run.config(), query.recorded_presence(run)).savefig(path, dpi=160)


def decisions_figure(config: Mapping[str, Any], cells: States) -> Figure:
    """Client by round, and of every client and every round how much of the presence was used."""
    with matplotlib.rc_context(STYLE):
        out = Figure(figsize=(6.4, 4.6), layout="constrained")
        grid = out.add_gridspec(2, 2, width_ratios=[5, 1], height_ratios=[3, 1])
        picture = out.add_subplot(grid[0, 0])
        draw_presence(picture, cells)
        picture.tick_params(labelbottom=False)
        picture.set_xlabel("")
        _shares(out.add_subplot(grid[0, 1], sharey=picture), cells)
        _counts(out.add_subplot(grid[1, 0], sharex=picture), cells)
        out.legend(handles=patches(NAMES), loc="outside lower center", ncols=4)
        out.suptitle(f"{query.label_in_words(config.get('label', '?'))}, seed {config.get('seed')}", fontsize=10)
    return out


def _shares(axes: Any, cells: States) -> None:
    """Beside the raster: the share of the rounds in which each client was heard from, and not selected."""
    who, left = np.arange(len(cells)), np.zeros(len(cells))
    for state in (HEARD, NOT_SELECTED, LOST):
        share = (cells == state).mean(axis=1)
        axes.barh(who, share, left=left, height=1.0, color=COLOURS[state])
        left = left + share
    axes.set(xlabel="share", xlim=(0, 1))
    axes.tick_params(labelleft=False)


def _counts(axes: Any, cells: States) -> None:
    """Beneath it: how many clients were heard from, and how many not selected, round by round."""
    rounds = np.arange(1, cells.shape[1] + 1)
    counts = {COLOURS[state]: (cells == state).sum(axis=0) for state in (HEARD, NOT_SELECTED, LOST)}
    axes.stackplot(rounds, *counts.values(), colors=list(counts), step="mid", linewidth=0)
    axes.set(xlabel="round", ylabel="clients", ylim=(0, None))

"""The picture of a comparison: a curve per algorithm, and beneath it who took part."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from matplotlib.colors import ListedColormap

from fedstale.runs.store import RunFolder

# Okabe and Ito's colours, told apart by colour-blind readers, with a line style each for print.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
DASHES = ["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 3))]
NAMES = {
    "accuracy": "test accuracy",
    "loss": "test loss",
    "objective": "training objective",
    "distance": "distance to the optimum",
}


def comparison(groups: Mapping[str, Sequence[RunFolder]], title: str, path: Path) -> None:
    """Mean over seeds with a band of one standard deviation; the raster is the first seed's."""
    metrics = {label: [run.metrics() for run in runs] for label, runs in groups.items()}
    first = next(iter(metrics.values()))[0]
    names = [n for n in ("accuracy", "objective", "distance") if n in first[-1]][:2]
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = plt.figure(figsize=(9, 6), layout="constrained")
        grid = figure.add_gridspec(2, len(names), height_ratios=[3, 1.3])
        for k, name in enumerate(names):
            axes = figure.add_subplot(grid[0, k])
            _curves(axes, metrics, name)
            if k == 0:
                axes.legend(frameon=False, fontsize=8)
        _raster(figure.add_subplot(grid[1, :]), first)
        figure.suptitle(title, fontsize=10)
        figure.savefig(path, dpi=160)
        plt.close(figure)


def _curves(axes: Any, metrics: Mapping[str, Sequence[list[dict[str, Any]]]], name: str) -> None:
    for k, (label, runs) in enumerate(metrics.items()):
        rounds = [line["round"] for line in runs[0] if name in line]
        values = np.array([[line[name] for line in run if name in line] for run in runs])  # (seeds, rounds)
        mean, std = values.mean(axis=0), values.std(axis=0)
        style = {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k % len(DASHES)]}
        axes.plot(rounds, mean, label=label, linewidth=1.4, **style)
        if len(runs) > 1:
            axes.fill_between(rounds, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel(NAMES[name])
    if name == "accuracy":
        axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, decimals=0))
    elif _wide(axes):
        axes.set_yscale("log")
    axes.grid(alpha=0.25)


def _wide(axes: Any) -> bool:
    """Whether the curves span more than a factor of ten."""
    values = np.concatenate([line.get_ydata() for line in axes.lines])
    return bool(values.min() > 0 and values.max() > 10 * values.min())


def _raster(axes: Any, metrics: list[dict[str, Any]]) -> None:
    """Client by round: a dark cell is an update that the server used."""
    axes.set_xlabel("round")
    if "heard" in metrics[0]:
        axes.imshow(
            raster(metrics), aspect="auto", cmap=ListedColormap(["#FFFFFF", "#3B4A5A"]), vmin=0, vmax=1,
            interpolation="nearest", origin="lower",
            extent=(0.5, len(metrics) + 0.5, -0.5, _clients(metrics) - 0.5),
        )  # fmt: skip
        axes.set_ylabel("client heard from")
    else:
        axes.plot([line["round"] for line in metrics], [line["participants"] for line in metrics], color="#444444")
        axes.set_ylabel("clients heard from")


def raster(metrics: list[dict[str, Any]]) -> npt.NDArray[np.float64]:
    """(clients, rounds): 1 where the client was heard from."""
    cells = np.zeros((_clients(metrics), len(metrics)))
    for k, line in enumerate(metrics):
        cells[line["heard"], k] = 1
    return cells


def _clients(metrics: list[dict[str, Any]]) -> int:
    return 1 + max((max(line["heard"], default=0) for line in metrics), default=0)

"""Who was there and who was left out: the picture of a strategy that chooses, such as CA-Fed.

After fig. 2.5 of Rodio, Client heterogeneity in federated learning systems, thesis, 2024.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from fedstale.core import require
from fedstale.runs.store import RunFolder

AWAY, HEARD, SPARED = 0, 1, 2
COLOURS = ["#FFFFFF", "#3B4A5A", "#E69F00"]


def decisions(run: RunFolder, path: Path) -> None:
    """Client by round, and for every client how much of its presence was used; reads the store only."""
    config, cells = run.config(), states(run)
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = plt.figure(figsize=(6.4, 4.6), layout="constrained")
        grid = figure.add_gridspec(2, 2, width_ratios=[5, 1], height_ratios=[3, 1])
        picture = figure.add_subplot(grid[0, 0])
        raster(picture, cells)
        _shares(figure.add_subplot(grid[0, 1], sharey=picture), cells)
        _counts(figure.add_subplot(grid[1, 0], sharex=picture), cells)
        names = {HEARD: "heard from", SPARED: "there, but left out", AWAY: "away or lost"}
        figure.legend(handles=patches(names), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        figure.suptitle(f"{config.get('label', run.path.name)}, seed {config.get('seed')}", fontsize=10)
        figure.savefig(path, dpi=160)
        plt.close(figure)


def states(run: RunFolder) -> npt.NDArray[np.int8]:
    """(clients, rounds): AWAY, HEARD or SPARED."""
    lines = run.metrics()
    require(len(lines) > 0, f"{run.path} has no rounds yet")
    require("heard" in lines[0], f"{run.path} has too many clients for its rounds to name them one by one")
    n = 1 + max(max([*line["heard"], *line.get("spared", [])], default=0) for line in lines)
    cells = np.zeros((max(n, run.config().get("data", {}).get("clients", 0)), len(lines)), np.int8)
    for k, line in enumerate(lines):
        cells[line["heard"], k] = HEARD
        cells[line.get("spared", []), k] = SPARED
    return cells


def patches(names: Mapping[int, str]) -> list[Patch]:
    """The legend of a raster."""
    return [Patch(facecolor=COLOURS[k], edgecolor="#999999", label=name) for k, name in names.items()]


def raster(axes: Any, cells: npt.NDArray[np.int8]) -> None:
    """Client by round."""
    clients, rounds = cells.shape
    axes.imshow(cells, aspect="auto", cmap=ListedColormap(COLOURS), vmin=0, vmax=2, interpolation="nearest",
                origin="lower", extent=(0.5, rounds + 0.5, -0.5, clients - 0.5))  # fmt: skip
    axes.set_ylabel("client")
    axes.tick_params(labelbottom=False)


def _shares(axes: Any, cells: npt.NDArray[np.int8]) -> None:
    """Beside the raster: the share of the rounds in which each client was there, used and left out."""
    who, left = np.arange(len(cells)), np.zeros(len(cells))
    for state in (HEARD, SPARED):
        share = (cells == state).mean(axis=1)
        axes.barh(who, share, left=left, height=1.0, color=COLOURS[state])
        left = left + share
    axes.set(xlabel="share", xlim=(0, 1))
    axes.tick_params(labelleft=False)


def _counts(axes: Any, cells: npt.NDArray[np.int8]) -> None:
    """Beneath it: how many were heard from and how many left out, round by round."""
    rounds = np.arange(1, cells.shape[1] + 1)
    used, spared = (cells == HEARD).sum(axis=0), (cells == SPARED).sum(axis=0)
    axes.stackplot(rounds, used, spared, colors=[COLOURS[HEARD], COLOURS[SPARED]], step="mid", linewidth=0)
    axes.set(xlabel="round", ylabel="clients", ylim=(0, None))

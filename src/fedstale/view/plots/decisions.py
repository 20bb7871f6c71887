"""Who was there and who was not selected: the picture of a strategy that chooses, such as CA-Fed.

After fig. 2.5 of Rodio, Client heterogeneity in federated learning systems, thesis, 2024.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fedstale.lab.runs.query import AWAY, HEARD, LOST, NOT_SELECTED, States, recorded_presence
from fedstale.lab.runs.store import RunFolder
from fedstale.view.plots import raster
from fedstale.view.plots.palette import STYLE

NAMES = {HEARD: "heard from", NOT_SELECTED: "there, but not selected", LOST: "asked, but lost", AWAY: "away"}


def decisions(run: RunFolder, path: Path) -> None:
    """Write the picture of a run, finished or not."""
    figure(run.config(), recorded_presence(run)).savefig(path, dpi=160)


def figure(config: Mapping[str, Any], cells: States) -> Figure:
    """Client by round, and of every client and every round how much of the presence was used."""
    with matplotlib.rc_context(STYLE):
        out = Figure(figsize=(6.4, 4.6), layout="constrained")
        grid = out.add_gridspec(2, 2, width_ratios=[5, 1], height_ratios=[3, 1])
        picture = out.add_subplot(grid[0, 0])
        raster.draw(picture, cells)
        picture.tick_params(labelbottom=False)
        picture.set_xlabel("")
        _shares(out.add_subplot(grid[0, 1], sharey=picture), cells)
        _counts(out.add_subplot(grid[1, 0], sharex=picture), cells)
        out.legend(handles=raster.patches(NAMES), loc="outside lower center", ncols=4)
        out.suptitle(f"{config.get('label', '?')}, seed {config.get('seed')}", fontsize=10)
    return out


def _shares(axes: Any, cells: States) -> None:
    """Beside the raster: the share of the rounds in which each client was heard from, and not selected."""
    who, left = np.arange(len(cells)), np.zeros(len(cells))
    for state in (HEARD, NOT_SELECTED, LOST):
        share = (cells == state).mean(axis=1)
        axes.barh(who, share, left=left, height=1.0, color=raster.COLOURS[state])
        left = left + share
    axes.set(xlabel="share", xlim=(0, 1))
    axes.tick_params(labelleft=False)


def _counts(axes: Any, cells: States) -> None:
    """Beneath it: how many clients were heard from, and how many not selected, round by round."""
    rounds = np.arange(1, cells.shape[1] + 1)
    counts = {raster.COLOURS[state]: (cells == state).sum(axis=0) for state in (HEARD, NOT_SELECTED, LOST)}
    axes.stackplot(rounds, *counts.values(), colors=list(counts), step="mid", linewidth=0)
    axes.set(xlabel="round", ylabel="clients", ylim=(0, None))

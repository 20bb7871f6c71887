"""The raster of presence: clients × rounds, who was heard from, who was there and not selected, who was lost.

The picture of a strategy that chooses is after fig. 2.5 of Rodio, Client heterogeneity in federated learning
systems, thesis, 2024.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedstale.lab.runs.query import AWAY, HEARD, LOST, NOT_SELECTED, States, recorded_presence
from fedstale.lab.runs.statistics import block_means, thinned
from fedstale.lab.runs.store import RunFolder
from fedstale.view.plots.palette import DARK, GREY, ORANGE, PINK, STYLE

COLOURS = {AWAY: "#FFFFFF", HEARD: DARK, NOT_SELECTED: ORANGE, LOST: PINK}
CLIENTS, ROUNDS = 1024, 2000  # cells that a picture shows apart: of more clients some, of more rounds blocks


def draw(axes: Any, states: States, most: tuple[int, int] = (CLIENTS, ROUNDS)) -> int:
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
        draw(picture, cells)
        picture.tick_params(labelbottom=False)
        picture.set_xlabel("")
        _shares(out.add_subplot(grid[0, 1], sharey=picture), cells)
        _counts(out.add_subplot(grid[1, 0], sharex=picture), cells)
        out.legend(handles=patches(NAMES), loc="outside lower center", ncols=4)
        out.suptitle(f"{config.get('label', '?')}, seed {config.get('seed')}", fontsize=10)
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

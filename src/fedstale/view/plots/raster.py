"""Pictures of presence: clients × rounds, who was heard from, not selected or lost; and what a recording is like.

The picture of a strategy that chooses is after fig. 2.5 of Rodio, Client heterogeneity in federated learning
systems, thesis, 2024.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from fedstale.core import Floats, Mask
from fedstale.lab.runs.query import AWAY, HEARD, LOST, NOT_SELECTED, States, recorded_presence
from fedstale.lab.runs.statistics import block_means, thinned
from fedstale.lab.runs.store import RunFolder
from fedstale.view.plots.palette import BLUE, DARK, GREY, ORANGE, PINK, STYLE, VERMILION

COLOURS = {AWAY: "#FFFFFF", HEARD: DARK, NOT_SELECTED: ORANGE, LOST: PINK}
CLIENTS, ROUNDS = 1024, 2000  # cells that a picture shows apart: of more clients some, of more rounds blocks
SIZE = 60, 480  # the same of the picture of a recording
Counts = npt.NDArray[np.int64]  # [k] how often k came


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


def recording(here: Mask, mixing: Floats, on: Counts, off: Counts, staleness: Counts, title: str) -> Figure:
    """A trace: how often, how long, how stale, and a look at its rows.

    `here` is (rounds, clients); the counts are histograms over whole numbers of rounds.
    """
    marginals = here.mean(axis=0)
    with matplotlib.rc_context(STYLE):
        out = Figure(figsize=(6.4, 6.6), layout="constrained")
        grid = out.add_gridspec(3, 2, height_ratios=[1, 1, 1.35])
        _marginals(out.add_subplot(grid[0, 0]), marginals)
        _mixing(out.add_subplot(grid[0, 1]), mixing[(marginals > 0) & (marginals < 1)])
        _stretches(out.add_subplot(grid[1, 0]), on, off)
        _staleness(out.add_subplot(grid[1, 1]), staleness)
        _raster(out.add_subplot(grid[2, :]), here, np.argsort(marginals, kind="stable"))
        out.suptitle(title, fontsize=10)
    return out


def _marginals(axes: Any, marginals: Floats) -> None:
    rank = np.arange(1, len(marginals) + 1)
    axes.fill_between(rank, np.sort(marginals), step="mid", color=BLUE, alpha=0.25, linewidth=0)
    axes.step(rank, np.sort(marginals), where="mid", color=BLUE, linewidth=1.4)
    axes.axhline(marginals.mean(), color=DARK, linewidth=0.9, linestyle="--")
    axes.annotate(f"mean {marginals.mean():.2g}", (0.02, marginals.mean()), xycoords=("axes fraction", "data"),
                  xytext=(0, 3), textcoords="offset points", fontsize=8, color=DARK)  # fmt: skip
    axes.set(xlabel="clients, rarest first", ylabel="share of the rounds", ylim=(0, 1.02))
    axes.set_xlim(0.5, len(marginals) + 0.5)


def _mixing(axes: Any, mixing: Floats) -> None:
    """Of the clients that come and go: nothing is known of the others."""
    low = min(0.0, float(np.floor(10 * mixing.min(initial=0.0)) / 10))
    axes.hist(mixing, bins=np.linspace(low, 1, 26), color=BLUE, alpha=0.85)
    axes.axvline(0, color=DARK, linewidth=0.9, linestyle="--")
    axes.set(xlabel="correlation of a round with the next, λ", ylabel="clients", xlim=(low, 1))


def _stretches(axes: Any, on: Counts, off: Counts) -> None:
    for counts, name, colour, dash in ((on, "presence", BLUE, "-"), (off, "absence", VERMILION, "--")):
        axes.step(*_at_least(counts, 1), where="post", color=colour, linestyle=dash, linewidth=1.4, label=name)
    axes.set(xlabel="k, rounds in a row", ylabel="share of k or longer", ylim=(0, 1.02))
    _logarithmic(axes, max(len(on), len(off)) - 1)
    axes.legend()


def _staleness(axes: Any, staleness: Counts) -> None:
    k, share = _at_least(staleness, 1)
    axes.step(k, share, where="post", color=BLUE, linewidth=1.4)
    axes.fill_between(k, share, step="post", color=BLUE, alpha=0.25, linewidth=0)
    axes.set(xlabel="staleness k, rounds", ylabel="share of k or staler", ylim=(0, 1.02))
    _logarithmic(axes, len(staleness) - 1)


def _at_least(counts: Counts, first: int) -> tuple[Counts, Floats]:
    """k = first, … and the share of all that came with k or more; the last is 0, which closes the steps."""
    tail = np.append(counts[::-1].cumsum()[::-1], 0)[first:]
    return np.arange(first, first + len(tail)), tail / max(int(counts.sum()), 1)


def _logarithmic(axes: Any, longest: int) -> None:
    axes.set_xlim(0.95, max(longest, 2) * 1.15)
    if longest > 20:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda k, _: f"{k:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25)


def _raster(axes: Any, here: Mask, order: npt.NDArray[np.int64]) -> None:
    """A sample of the clients, the rarest at the bottom; the darker, the more of the time they are there."""
    n = here.shape[1]
    drawn = draw(axes, here.T[order].astype(np.int8) * HEARD, SIZE)
    axes.set_yticks([0, n - 1], ["rare", "often"])
    axes.set_ylabel(f"{drawn} of {n} clients" if n > drawn else f"{n} clients")

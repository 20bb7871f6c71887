"""The picture of a recorded participation: how often clients come, for how long, how stale they are."""

from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from fedstale.core import Floats, Mask
from fedstale.lab.runs.query import HEARD
from fedstale.view.plots.palette import BLUE, DARK, STYLE, VERMILION
from fedstale.view.plots.pictures import draw_presence

SIZE = 60, 480  # clients and rounds that the raster shows apart
Counts = npt.NDArray[np.int64]  # [k] how often k came


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
    drawn = draw_presence(axes, here.T[order].astype(np.int8) * HEARD, SIZE)
    axes.set_yticks([0, n - 1], ["rare", "often"])
    axes.set_ylabel(f"{drawn} of {n} clients" if n > drawn else f"{n} clients")

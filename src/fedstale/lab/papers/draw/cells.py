"""Figures whose cells are settings: maps of the best β and of what a rule loses to it, standings, and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedstale.core import Floats
from fedstale.lab.papers.draw.style import About, by, ends, heterogeneity_axes, levels, subplots
from fedstale.lab.papers.rates import Row
from fedstale.lab.runs.metrics import metric
from fedstale.lab.runs.statistics import paired_test, spread
from fedstale.view.plots.palette import looks

MOST = 20.0  # percent of regret, where the colours end
LINE = 0.21  # inches from one line of a table to the next
Cells = Mapping[tuple[str, str], Floats]  # (line, column) → the values over the seeds


def heatmap(rows: Sequence[Row], about: About) -> Figure:
    """FedStale, figure 2: in each cell the best β, and what FedAvg and FedVARP lose to it, in points."""
    p, q = (levels(rows, key) for key in ("p_min", "swap.fraction"))
    panels = by(rows, "panel")
    size = ((0.6 + 0.95 * len(p)) * len(panels) + 1.0, 1.6 + 0.6 * len(q))
    figure, (places,) = subplots(1, len(panels), size, sharey=True)
    for axes, ((panel,), group) in zip(places, panels.items(), strict=True):
        cells = {key: best(some) for key, some in by(group, "p_min", "swap.fraction").items()}
        image = axes.imshow([[cells[x, y][0] for x in p] for y in q], cmap="Blues", vmin=0, vmax=1.25,
                            origin="lower", aspect="auto")  # fmt: skip
        for (x, y), gained in cells.items():
            _write_gains(axes, p.index(x), q.index(y), *gained)
        heterogeneity_axes(axes, p, q)
        axes.set(xlabel="participation heterogeneity $p_{avg} / p_{min}$", title=panel if len(panels) > 1 else "")
    places[0].set_ylabel("data heterogeneity $\\hat\\sigma^2$")
    bar = figure.colorbar(image, ax=places, ticks=[0, 0.2, 0.5, 0.8, 1], boundaries=np.linspace(0, 1, 101))
    bar.set_label("best β")
    return figure


def _write_gains(axes: Any, x: float, y: float, beta: float, over_avg: float, over_varp: float) -> None:
    text = f"$\\beta$={beta:g}\n$\\Delta_0$ {over_avg:.2f}\n$\\Delta_1$ {over_varp:.2f}"
    axes.text(x, y, text, ha="center", va="center", fontsize=7, color="white" if beta > 0.75 else "black")


def best(group: Sequence[Row]) -> tuple[float, float, float]:
    """β_opt and its gains over β = 0 and β = 1, in points of test accuracy."""
    means = {
        beta: 100 * float(np.mean([0.0 if row.diverged else row.values["accuracy_last10"] for row in some]))
        for (beta,), some in by(group, "beta").items()
    }
    top = max(means, key=lambda beta: means[beta])
    return top, means[top] - means.get(0.0, np.nan), means[top] - means.get(1.0, np.nan)


def gains(rows: Sequence[Row], about: About) -> Figure:
    """FedStale, figure 5: the best β and its gains, with exact and with estimated probabilities."""
    p, panels = levels(rows, "p_min"), by(rows, "panel")
    figure, ((axes,),) = subplots(1, 1, (1.8 + 0.95 * len(p), 1.0 + 0.75 * len(panels)))
    for y, ((panel,), group) in enumerate(reversed(panels.items())):
        axes.text(-0.75, y, panel, ha="right", va="center", fontsize=8)
        for (p_min,), some in by(group, "p_min").items():
            x, gained = p.index(p_min), best(some)
            colour = matplotlib.colormaps["Blues"](gained[0] / 1.25)
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour))
            _write_gains(axes, x, y, *gained)
    axes.set(
        xlim=(-1.9, len(p) - 0.4),
        ylim=(-0.55, len(panels) - 0.45),
        xlabel="participation heterogeneity $p_{avg} / p_{min}$",
    )
    heterogeneity_axes(axes, p, [])
    return figure


def regret(rows: Sequence[Row], about: About) -> Figure:
    """In each cell the training objective against the best fixed β, in percent; a star if it is beyond chance."""
    p, q = (levels(rows, key) for key in ("p_min", "swap.fraction"))
    panels, rules = by(rows, "panel"), about["shown"]
    size = (1.7 + len(rules) * (0.5 + 0.5 * len(p)), 1.1 + len(panels) * (0.9 + 0.32 * len(q)))
    figure, places = subplots(len(panels), len(rules), size, sharex=True, sharey=True)
    for line, ((panel,), group) in zip(places, panels.items(), strict=True):
        for axes, rule in zip(line, rules, strict=True):
            cells = {key: against_best(some, rule) for key, some in by(group, "p_min", "swap.fraction").items()}
            image = _map(axes, cells, p, q)
            axes.set_title(f"{rule}\n{panel}" if panel else rule, fontsize=8)
        line[0].set_ylabel("$\\hat\\sigma^2$")
    for axes in places[-1]:
        axes.set_xlabel("$p_{avg} / p_{min}$")
    label = "objective against\nthe best fixed β (%)\n* beyond chance"
    figure.colorbar(image, ax=places, shrink=0.8).set_label(label)
    return figure


def _map(axes: Any, cells: Mapping[tuple[Any, ...], tuple[float, bool]], p: list[float], q: list[float]) -> Any:
    values = [[cells[x, y][0] for x in p] for y in q]
    image = axes.imshow(values, cmap="PuOr_r", vmin=-MOST, vmax=MOST, origin="lower", aspect="auto")
    for (x, y), (value, sure) in cells.items():
        text, strong = f"{value:+.1f}{'*' if sure else ''}", abs(value) > 0.7 * MOST
        axes.text(p.index(x), q.index(y), text, ha="center", va="center", fontsize=6, color="w" if strong else "k")
    heterogeneity_axes(axes, p, q)
    return image


def against_best(group: Sequence[Row], rule: str) -> tuple[float, bool]:
    """Percent of the objective that a rule is above the best fixed β, and whether that is beyond chance."""
    values = {
        name: np.array([np.inf if row.diverged else row.values["objective_last10"] for row in some])
        for (name,), some in by(group, "algorithm").items()
    }
    fixed = dict.fromkeys(row.algorithm for row in group if "beta" in row.settings)
    best = min(fixed, key=lambda name: float(values[name].mean()))
    return 100 * float(values[rule].mean() / values[best].mean() - 1), paired_test(values[best] - values[rule]) != 0


def standings(rows: Sequence[Row], about: About) -> Figure:
    """Where every rule ends: training objective, and test accuracy, with the deviation over the seeds."""
    panels = by(rows, "panel")
    names = [name for (name,) in by(rows, "algorithm")]
    drawn = looks(names)
    size = (7.0, 0.9 + len(panels) * (0.7 + 0.21 * len(names)))
    figure, places = subplots(len(panels), 2, size, sharey=True)
    for line, ((panel,), group) in zip(places, panels.items(), strict=True):
        for axes, m in zip(line, (metric("objective"), metric("accuracy")), strict=True):
            for k, name in enumerate(names):
                done = ends([row for row in group if row.algorithm == name], f"{m.name}_last10")
                if done:
                    mean, std, _ = spread(m.scale * np.array(done))
                    point = drawn[name].line | {"linestyle": "none", "marker": drawn[name].marker}
                    axes.errorbar(mean, k, xerr=std, capsize=2, **point)
            axes.set_xlabel(m.axis)
            axes.grid(alpha=0.25)
        line[0].set_yticks(range(len(names)), names)
        line[0].set_title(panel, fontsize=9, loc="left")
    places[0][0].invert_yaxis()  # of all panels, because they share it
    return figure


def table(rows: Sequence[Row], about: About) -> Figure:
    """Thesis, tables 5.1 to 5.4, D.2: a block for each dataset, a line for each weighting, a column for each mix.

    A panel is called `DATASET COLUMN`; `axes.unit` of the figure says what the numbers and the columns are.
    """
    blocks: dict[str, dict[tuple[str, str], Floats]] = {}
    for (panel, line), group in by(rows, "panel", "algorithm").items():
        dataset, _, mix = str(panel).partition(" ")
        blocks.setdefault(dataset, {})[line, mix] = 100 * np.array(ends(group, "accuracy_last10"))
    unit = "accuracy of what is served (%), mean ± deviation over seeds;\ncolumns: share (%) served by exits 1-2-3"
    return _draw(blocks, about.get("axes", {}).get("unit", unit), best=True)


def variances(rows: Sequence[Row], about: About) -> Figure:
    """Thesis, table D.1: a line for each dataset, a column for each exit, at the start and the end of training."""
    names = [key for key in rows[0].values if key.startswith("variance_exit") and key.endswith("_final")]
    blocks = {
        when: {
            (panel, f"exit {e}"): 1e5 * np.array(ends(group, f"variance_exit_{e}_{suffix}"))
            for (panel,), group in by(rows, "panel").items()
            for e in (name.split("_")[2] for name in names)
        }
        for when, suffix in (("after one round", "at_1"), ("at the end", "final"))
    }
    unit = "variance of a minibatch gradient (10⁻⁵), mean over parameters;\nmean ± deviation over seeds"
    return _draw(blocks, unit)


def _draw(blocks: Mapping[str, Cells], unit: str, *, best: bool = False) -> Figure:
    """A picture of the blocks one above the other; with `best` the largest of each column is bold."""
    columns = list(dict.fromkeys(column for cells in blocks.values() for _, column in cells))
    height = sum(2 + len({line for line, _ in cells}) for cells in blocks.values())
    width = max(3.4, 1.35 + 0.72 * len(columns))
    figure, ((axes,),) = subplots(1, 1, (width, LINE * (height + 5.5)))
    axes.set(xlim=(0, 1.35 + 0.72 * len(columns)), ylim=(height, 0))
    axes.axis("off")
    axes.set_title(unit, fontsize=6.5, loc="left", color="#444444")
    y = 0.5
    for name, cells in blocks.items():
        y = _block(axes, y, name, cells, columns, best) + 1
    return figure


def _block(axes: Any, y: float, name: str, cells: Cells, columns: Sequence[str], best: bool) -> float:
    """A heading, a rule and the lines."""
    lines = list(dict.fromkeys(line for line, _ in cells))
    means = {key: spread(values) for key, values in cells.items() if len(values)}
    axes.text(0, y, name, fontsize=7.5, va="center", weight="bold")
    for k, column in enumerate(columns):
        axes.text(_x(k), y, column, fontsize=7, va="center", ha="right", color="#444444")
    axes.plot([0, _x(len(columns) - 1)], [y + 0.5, y + 0.5], color="black", linewidth=0.6)
    for j, line in enumerate(lines, 1):
        axes.text(0, y + j, line, fontsize=7, va="center")
        for k, column in enumerate(columns):
            if (line, column) in cells:
                end = means.get((line, column))
                top = best and end and end.mean >= max(means[o, column].mean for o in lines if (o, column) in means)
                text = f"{end.mean:.1f} ± {end.std:.1f}" if end else "diverged"
                axes.text(_x(k), y + j, text, fontsize=7, va="center", ha="right", weight="bold" if top else None)
    return y + len(lines)


def _x(k: int) -> float:
    return 1.33 + 0.72 * (k + 1)

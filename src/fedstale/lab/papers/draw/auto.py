"""Evidence for FedStale that tunes itself: how far each rule ends from the best fixed β, cell by cell."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedstale.lab.papers.draw.style import FRAMED, About, Drawing, by, ends, heterogeneity_axes, levels, subplots
from fedstale.lab.papers.rates import Row
from fedstale.lab.runs.metrics import metric
from fedstale.lab.runs.statistics import paired_test, spread
from fedstale.view.plots.palette import STYLE, looks

METRIC = "objective_last10"
MOST = 20.0  # percent, where the colours end


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
        name: np.array([np.inf if row.diverged else row.values[METRIC] for row in some])
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


DRAW = {"regret": Drawing(regret, FRAMED), "standings": Drawing(standings, STYLE)}

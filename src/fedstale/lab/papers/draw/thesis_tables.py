"""The tables of Rodio's thesis on Fed-CIS, as pictures: chapter 5 and appendix D."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedstale.core import Floats
from fedstale.lab.papers.draw.style import About, Drawing, by, ends, subplots
from fedstale.lab.papers.rates import Row
from fedstale.lab.runs.statistics import spread
from fedstale.view.plots.palette import STYLE

LINE = 0.21  # inches from one line of a table to the next
Cells = Mapping[tuple[str, str], Floats]  # (line, column) → the values over the seeds


def served(rows: Sequence[Row], about: About) -> Figure:
    """Tables 5.1 to 5.4 and D.2: a block for each dataset, a line for each weighting, a column for each mix.

    A panel is called `DATASET COLUMN`; `axes.unit` of the figure says what the numbers and the columns are.
    """
    blocks: dict[str, dict[tuple[str, str], Floats]] = {}
    for (panel, line), group in by(rows, "panel", "algorithm").items():
        dataset, _, mix = str(panel).partition(" ")
        blocks.setdefault(dataset, {})[line, mix] = 100 * np.array(ends(group, "accuracy_last10"))
    unit = "accuracy of what is served (%), mean ± deviation over seeds;\ncolumns: share (%) served by exits 1-2-3"
    return _draw(blocks, about.get("axes", {}).get("unit", unit), best=True)


def variances(rows: Sequence[Row], about: About) -> Figure:
    """Table D.1: a line for each dataset, a column for each exit, at the start and at the end of training."""
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


DRAW = {"table": Drawing(served, STYLE), "variances": Drawing(variances, STYLE)}

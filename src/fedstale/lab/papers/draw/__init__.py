"""Draws the figures of the papers; importing it loads matplotlib."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure as Picture

from fedstale.core import known
from fedstale.lab.papers.draw import cells, curves
from fedstale.lab.papers.draw.style import About
from fedstale.lab.papers.figure import Figure
from fedstale.lab.papers.rates import Row
from fedstale.view.plots.palette import STYLE

PAPERS = ("fedstale", "thesis", "amplified", "auto", "fedawe")
FRAMED = STYLE | {"axes.spines.top": True, "axes.spines.right": True}
BARE = STYLE | {"axes.spines.left": False, "axes.spines.bottom": False}
SMALL = STYLE | {
    "font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
}  # fmt: skip
Draw = Callable[[Sequence[Row], About], Picture]
STYLES: dict[Draw, dict[Any, Any]] = {  # of every drawing
    **dict.fromkeys((curves.curves, curves.trajectories, curves.lines), STYLE),
    **dict.fromkeys((curves.importance, curves.tradeoff, curves.over), SMALL),
    **dict.fromkeys((curves.estimates, curves.clusters, curves.losses), SMALL),
    **dict.fromkeys((cells.heatmap, cells.regret), FRAMED), cells.gains: BARE,
    **dict.fromkeys((cells.standings, cells.table, cells.variances), STYLE),
}  # fmt: skip
DRAWINGS = {draw.__name__: draw for draw in STYLES}


def drawing(figure: Figure) -> Draw:
    """The drawing that `figure.draw` names."""
    known(figure.about["paper"], dict.fromkeys(PAPERS), "figure.paper")
    return DRAWINGS[known(figure.about["draw"], DRAWINGS, "figure.draw")]


def draw(figure: Figure, rows: Sequence[Row], path: Path) -> None:
    """Draw a figure into a file, with its title above and, beneath, how it was reduced."""
    paint = drawing(figure)
    note = "" if figure.reduced.startswith("nothing") else figure.reduced
    with matplotlib.rc_context(STYLES[paint]):
        picture = paint(rows, figure.about)
        width = picture.get_figwidth()  # inches
        picture.suptitle("\n".join(textwrap.wrap(figure.about["title"], int(width * 13))), fontsize=10)
        if note:
            lines = textwrap.wrap(f"Reduced: {note}.", int(width * 18))
            picture.supxlabel("\n".join(lines), fontsize=7, color="#444444")
        picture.draw_without_rendering()  # the layout depends on labels that are known only now
        picture.savefig(path, dpi=200, metadata={"Software": None} if path.suffix == ".png" else None)

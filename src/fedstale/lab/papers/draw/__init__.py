"""Draws the figures of the papers; importing it loads matplotlib."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from fedstale.core import known
from fedstale.lab.papers.draw import amplified, auto, fedstale, thesis, thesis_tables
from fedstale.lab.papers.draw.style import Drawing
from fedstale.lab.papers.figure import Figure
from fedstale.lab.papers.rates import Row

PAPERS = {
    "fedstale": fedstale.DRAW, "thesis": thesis.DRAW | thesis_tables.DRAW, "amplified": amplified.DRAW,
    "auto": auto.DRAW, "fedawe": thesis_tables.DRAW,
}  # fmt: skip


def drawing(figure: Figure) -> Drawing:
    """The drawing that `figure.paper` and `figure.draw` name."""
    drawings = PAPERS[known(figure.about["paper"], PAPERS, "figure.paper")]
    return drawings[known(figure.about["draw"], drawings, "figure.draw")]


def draw(figure: Figure, rows: Sequence[Row], path: Path) -> None:
    """Draw a figure into a file, with its title above and, beneath, how it was reduced."""
    draw, style = drawing(figure)
    note = "" if figure.reduced.startswith("nothing") else figure.reduced
    with matplotlib.rc_context(style):
        picture = draw(rows, figure.about)
        width = picture.get_figwidth()  # inches
        picture.suptitle("\n".join(textwrap.wrap(figure.about["title"], int(width * 13))), fontsize=10)
        if note:
            lines = textwrap.wrap(f"Reduced: {note}.", int(width * 18))
            picture.supxlabel("\n".join(lines), fontsize=7, color="#444444")
        picture.draw_without_rendering()  # the layout depends on labels that are known only now
        picture.savefig(path, dpi=200, metadata={"Software": None} if path.suffix == ".png" else None)

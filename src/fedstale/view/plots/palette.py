"""One palette for all pictures: colours that colour-blind readers tell apart, and a dash and a marker with each.

It draws nothing itself: `line` and `marker` are in the words of matplotlib, the rest in those of plotly and SVG.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

BLUE, VERMILION, GREEN, PINK, ORANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
SKY, BLACK, GREY, DARK = "#56B4E9", "#000000", "#777777", "#3B4A5A"
# Okabe and Ito's colours, the darkest first; yellow is too faint on white.
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, BLACK, SKY, GREY)
DASHES = ((), (6, 3), (2, 2), (6, 2, 2, 2), (9, 3), (9, 2, 2, 2))  # pixels or points drawn, left out, …; (): solid
SYMBOLS = {  # plotly's name → matplotlib's
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P", "x": "X", "star": "*",
    "triangle-down": "v", "pentagon": "p",
}  # fmt: skip
STYLE: dict[Any, Any] = {  # of matplotlib, for every figure
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "legend.fontsize": 8, "svg.hashsalt": "fedstale",
}  # fmt: skip
WIDTH = 1.4  # points, of a curve in matplotlib


# The look of well-known rules, the first that a label contains: the same in every picture, page and run.
PLACES = {"unbiased": 3, "auto": 0, "scaffold": 7, "fedvarp": 6, "fedstale": 2, "mifa": 4, "fedau": 5, "fedavg": 1}


class Look(NamedTuple):
    """How one algorithm is drawn, everywhere in a picture."""

    colour: str
    dash: tuple[int, ...]
    symbol: str

    @property
    def line(self) -> dict[str, Any]:
        """The arguments of matplotlib's `plot`; it counts dashes in widths of the line."""
        dashes = (0, tuple(length / WIDTH for length in self.dash)) if self.dash else "-"
        return {"color": self.colour, "linestyle": dashes, "linewidth": WIDTH}

    @property
    def marker(self) -> str:
        return SYMBOLS[self.symbol]


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """A look for each label: always the same one, unless an earlier label of the same picture has it."""
    taken: dict[int, str] = {}
    for label in labels:
        size = len(COLOURS) * (1 + len(taken) // len(COLOURS))  # a second turn when all colours are in use
        wanted = _place(label) + size - len(COLOURS)
        free = next(k % size for k in range(wanted, wanted + size) if k % size not in taken)
        taken[free] = label
    return {label: look(k) for k, label in taken.items()}


def _place(label: str) -> int:
    """Where a label begins to look for a free look: that of its rule, else one that its letters choose."""
    known = (place for name, place in PLACES.items() if name in label.lower())
    return next(known, crc32(label.encode()) % len(COLOURS))


def look(k: int) -> Look:
    """The look of the k-th algorithm."""
    symbols = list(SYMBOLS)
    return Look(COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)], symbols[k % len(symbols)])

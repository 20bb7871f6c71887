"""How the page's plots look: colours that colour-blind readers tell apart, and a dash and a marker with each."""

from typing import Any, NamedTuple

# Okabe and Ito's colours, the darkest first; yellow is too faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9", "#777777")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon")
DARK, ORANGE, GREY = "#3B4A5A", "#E69F00", "#666666"
BLUES = [[0.0, "#f7fbff"], [0.5, "#a6cee8"], [1.0, "#3f8fc5"]]  # black text is legible on all of it
POINTS = 500  # of a curve; a longer one is thinned
KEYS = 8  # algorithms that are told apart in one plot


class Look(NamedTuple):
    colour: str
    dash: str
    symbol: str


def look(k: int) -> Look:
    return Look(COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)], SYMBOLS[k % len(SYMBOLS)])


def faint(colour: str, alpha: float = 0.14) -> str:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def layout(
    x: str, y: str, *, xaxis: dict[str, Any] | None = None, yaxis: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Axes with their names, and what is special about them. Fonts and margins are the page's."""
    line = {"gridcolor": "#e5e5e5", "linecolor": "#444", "zeroline": False, "ticks": "outside"}
    return {
        "xaxis": line | {"automargin": "height", "title": {"text": x}} | (xaxis or {}),
        "yaxis": line | {"automargin": "width", "title": {"text": y}} | (yaxis or {}),
        "showlegend": False,
        "hovermode": "closest",
    }

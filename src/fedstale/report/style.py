"""How the plots of the page look: the palette in plotly's words, and the axes."""

from typing import Any

from fedstale.plots.palette import Look

BLUES = [[0.0, "#f7fbff"], [0.5, "#a6cee8"], [1.0, "#3f8fc5"]]  # black text is legible on all of it
POINTS = 500  # of a curve; a longer one is thinned
CLIENTS = 200  # of a raster or a table; of more, evenly many are shown
KEYS = 8  # algorithms that are told apart in one plot


def stroke(look: Look, width: float) -> dict[str, Any]:
    """A line of plotly's."""
    return {"color": look.colour, "dash": ",".join(f"{n}px" for n in look.dash) or "solid", "width": width}


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

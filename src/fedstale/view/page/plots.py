"""What a plot of the page is and how it looks, and the curves over rounds."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Floats
from fedstale.lab.runs.metrics import Metric
from fedstale.lab.runs.statistics import thinned
from fedstale.lab.runs.verdict import Target
from fedstale.view.page.series import AXES, Lines, Series, scale, series
from fedstale.view.plots.palette import Look, look

BLUES = [[0.0, "#f7fbff"], [0.5, "#a6cee8"], [1.0, "#3f8fc5"]]  # black text is legible on all of it
CLIENTS = 200  # of a raster or a table; of more, evenly many are shown
KEYS = 8  # algorithms that are told apart in one plot
ROWS = 25  # of a table of a curve
BETA = Metric("beta", "β")  # the share of the memory, as a self-tuning rule chose it


class Table(NamedTuple):
    """The numbers of a plot, as text."""

    head: list[str]
    rows: list[list[str]]


class Key(NamedTuple):
    """An entry of a legend, which is a button: it shows and hides the traces of its name."""

    label: str
    look: Look
    line: bool = True  # else only the marker


class Plot(NamedTuple):
    """A plot for plotly, with its text alternative."""

    title: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    said: str  # the text alternative
    table: Table
    keys: Sequence[Key] = ()
    note: str = ""
    zoom: bool = False  # offer a look at the second half of the rounds
    rows: int = 0  # of things one below the other, which make the plot taller
    over: Mapping[str, list[list[float | None]]] = {}  # instead of rounds, by name: the x of each trace


def stroke(look: Look, width: float) -> dict[str, Any]:
    """A line of plotly's."""
    return {"color": look.colour, "dash": ",".join(f"{n}px" for n in look.dash) or "solid", "width": width}


def faint(colour: str) -> str:
    """A colour `#rrggbb` for bands and boxes, through which others are seen."""
    red, green, blue = bytes.fromhex(colour[1:])
    return f"rgba({red},{green},{blue},0.14)"


def layout(
    x: str, y: str, *, xaxis: dict[str, Any] | None = None, yaxis: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Axes with their names, and what is special about them. Fonts and margins are the page's."""
    line = {"gridcolor": "#e5e5e5", "linecolor": "#444", "zeroline": False, "ticks": "outside"}
    return {
        "xaxis": line | {"automargin": "height", "title": {"text": x}} | (xaxis or {}),
        "yaxis": line | {"automargin": "width", "title": {"text": y}} | (yaxis or {}),
        "showlegend": False, "hovermode": "closest",
    }  # fmt: skip


def ticks(m: Metric) -> dict[str, str]:
    """The numbers on an axis of a metric: shares as percentages."""
    return {"tickformat": ".2~%"} if m.percent else {}


def level(y: float) -> dict[str, Any]:
    """A dotted line from side to side."""
    dotted = {"color": "#888", "dash": "dot"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": dotted}


def interval(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    """The bars of an interval around each value."""
    up, down = np.subtract(high, values), np.subtract(values, low)
    colour = look(0).colour
    return {"type": "data", "symmetric": False, "color": colour, "array": plain(up), "arrayminus": plain(down)}


def plain(values: Any) -> list[float | None]:
    """Six digits of each, which is more than a screen shows; null where there is none."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


def scatter(mode: str, x: Sequence[Any], y: Sequence[Any], hover: str, **more: Any) -> dict[str, Any]:
    """Lines or markers; `hover` is the text of the point that is pointed at."""
    return {"type": "scatter", "mode": mode, "x": x, "y": y, **more, "hovertemplate": f"{hover}<extra></extra>"}


def dots(label: str, look: Look, values: Floats, clients: Iterable[str], said: str) -> dict[str, Any]:
    """A marker for each client, side by side; `said` is the text of the one that is pointed at."""
    return {
        "type": "scatter", "mode": "markers", "legendgroup": label, "x": list(range(1, len(values) + 1)),
        "y": plain(values), "text": [escape(name) for name in clients],
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 8, "line": {"width": 0.5, "color": "#fff"}},
        "hovertemplate": f"{escape(label)}<br>{said}<extra></extra>",
    }  # fmt: skip


def curves(
    lines: Sequence[Lines], m: Metric, looks: Mapping[str, Look], target: Target | None = None
) -> Plot | None:
    """Mean over seeds of one number, with a band of one standard deviation, and a line at its target."""
    found = [s for s in (series(group, m.name) for group in lines) if s]
    if not found or (m is BETA and all(np.ptp(s.values.mean) == 0 for s in found)):
        return None
    plot, note = mean_curves(found, m, looks), _note(lines, found)
    if target and target.metric.name == m.name:
        plot.layout["shapes"], note = [level(target.value)], f"{note} Dotted: the target, {target.text}."
    return plot._replace(note=note, over={x: xs for x in AXES if (xs := _over(plot.data, lines, x))})


def mean_curves(found: Sequence[Series], m: Metric, looks: Mapping[str, Look], unit: str = "round") -> Plot:
    """Curves of one number over rounds, or hours."""
    data = [trace for s in found for trace in _curve(s, looks[s.label], m, unit)]
    ends = ", ".join(f"{s.label} {m.text(s.values.mean[-1])}" for s in found)
    said = f"Curves of {m.label} over {found[0].rounds[-1]:.6g} {unit}s. At the end: {ends}."
    keys = [Key(s.label, looks[s.label]) for s in found]
    few = {"dtick": 1} if found[0].rounds[-1] < 10 and unit == "round" else {}  # no round 1.5
    axes = layout(unit, m.label, xaxis=few, yaxis=_axis(found, m))
    title = "β in each round, as the rule chose it" if m is BETA else m.title
    return Plot(title, data, axes, said, _table(found, m, unit), keys, zoom=m is not BETA)


def _over(data: Sequence[dict[str, Any]], lines: Sequence[Lines], x: str) -> list[list[float | None]]:
    """The traces' x as hours or bytes; nothing unless all runs recorded them."""
    scales = {of.group.label: scale(of, x) for of in lines}
    found = [(scales.get(trace["legendgroup"]), trace["x"]) for trace in data]
    return [plain(to(rounds)) for to, rounds in found if to] if all(to for to, _ in found) else []


def _note(lines: Sequence[Lines], found: Sequence[Series]) -> str:
    seeds = max(len(group.seeds) for group in lines)
    band = f"Mean over {seeds} seeds; the band is ± one standard deviation." if seeds > 1 else "One seed: no band."
    longest = max(found, key=lambda s: s.whole)
    drawn = len(longest.rounds)
    return band + f" {drawn} of {longest.whole} rounds are drawn." * (longest.whole > drawn)


def _curve(s: Series, look: Look, m: Metric, unit: str) -> list[dict[str, Any]]:
    label, band, (mean, std, seeds) = escape(s.label), [], s.values
    if seeds > 1:
        low, high = mean - std, mean + std
        high = np.minimum(high, 1) if m.percent else high
        low = low if m.percent else np.maximum(low, s.least)  # a logarithm ends above 0
        band = [{
            "type": "scatter", "x": [*s.rounds, *reversed(s.rounds)], "y": [*plain(high), *reversed(plain(low))],
            "fill": "toself", "fillcolor": faint(look.colour), "line": {"width": 0}, "mode": "lines",
            "hoverinfo": "skip", "legendgroup": s.label,
        }]  # fmt: skip
    line = {
        "type": "scatter", "mode": "lines+markers", "name": label, "legendgroup": s.label,
        "x": s.rounds, "y": plain(mean), "text": _texts(s, m), "line": stroke(look, 2.2),
        "hovertemplate": f"{label}<br>{unit} %{{x}}: %{{text}}<extra></extra>",
        "marker": {"symbol": look.symbol, "size": 8, "maxdisplayed": 9, "color": look.colour},
    }  # fmt: skip
    return [*band, line]


def _axis(found: Sequence[Series], m: Metric) -> dict[str, Any]:
    if m.percent:
        return ticks(m)
    if m is BETA:
        return {"range": [-0.03, 1.03]}
    values = np.concatenate([s.values.mean for s in found])
    wide = values.min() > 0 and values.max() > 10 * values.min()
    return {"type": "log", "tickvals": _decades(values.min(), values.max())} if wide else {}


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten from low to high; the powers alone where that would be many."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    return [float(f"{m}e{k}") for k in powers for m in ((1, 2, 5) if len(powers) <= 4 else (1,))]


def _table(found: Sequence[Series], m: Metric, unit: str) -> Table:
    texts = [dict(zip(s.rounds, _texts(s, m), strict=True)) for s in found]
    rounds = sorted({t for s in found for t in s.rounds})
    kept = [rounds[k] for k in thinned(len(rounds), ROWS)]
    rows = [[f"{t:.6g}", *(of.get(t, "–") for of in texts)] for t in kept]
    return Table([unit, *(s.label for s in found)], rows)


def _texts(s: Series, m: Metric) -> list[str]:
    mean, std, seeds = s.values
    return [m.text(mean[k], std[k] if seeds > 1 else None) for k in range(len(mean))]

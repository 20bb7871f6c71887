"""What a plot of the page is, and the curves over rounds."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from fedstale.report.series import NAMES, Lines, Series, series, thinned, told
from fedstale.report.style import Look, faint, layout

ROWS = 25  # of a table of a curve


class Table(NamedTuple):
    head: list[str]
    rows: list[list[str]]


class Key(NamedTuple):
    """An entry of a legend, which is a button: it shows and hides the traces of its name."""

    label: str
    look: Look
    line: bool = True  # else only the marker


class Plot(NamedTuple):
    title: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    said: str  # the text alternative
    table: Table
    keys: Sequence[Key] = ()
    note: str = ""
    zoom: bool = False  # offer a look at the second half of the rounds
    rows: int = 0  # of things one below the other, which make the plot taller


def curves(lines: Sequence[Lines], name: str, looks: Mapping[str, Look]) -> Plot | None:
    """Mean over seeds of one number, with a band of one standard deviation."""
    found = [s for s in (series(group, name) for group in lines) if s]
    if not found or (name == "beta" and all(np.ptp(s.mean) == 0 for s in found)):
        return None
    data = [trace for s in found for trace in _curve(s, looks[s.label], name)]
    what = NAMES[name]
    ends = ", ".join(f"{s.label} {told(float(s.mean[-1]), name)}" for s in found)
    said = f"Curves of {what} over {found[0].rounds[-1]} rounds. At the end: {ends}."
    keys = [Key(s.label, looks[s.label]) for s in found]
    few = {"dtick": 1} if found[0].rounds[-1] < 10 else {}  # no round 1.5
    axes = layout("round", what, xaxis=few, yaxis=_axis(found, name))
    plot = Plot(
        what.capitalize() if name != "beta" else "β in each round, as the rule chose it", data,
        axes, said, _table(found, name), keys,
    )  # fmt: skip
    return plot._replace(note=_note(lines, found), zoom=name != "beta")


def _note(lines: Sequence[Lines], found: Sequence[Series]) -> str:
    seeds = max(len(group.seeds) for group in lines)
    band = f"Mean over {seeds} seeds; the band is ± one standard deviation." if seeds > 1 else "One seed: no band."
    longest = max(found, key=lambda s: s.whole)
    thin = (
        f" {len(longest.rounds)} of {longest.whole} rounds are drawn."
        if longest.whole > len(longest.rounds)
        else ""
    )
    return band + thin


def _curve(s: Series, look: Look, name: str) -> list[dict[str, Any]]:
    label, band = escape(s.label), []
    if s.std is not None:
        low, high = s.mean - s.std, s.mean + s.std
        band = [{
            "type": "scatter", "x": [*s.rounds, *reversed(s.rounds)], "y": [*plain(high), *reversed(plain(low))],
            "fill": "toself", "fillcolor": faint(look.colour), "line": {"width": 0}, "mode": "lines",
            "hoverinfo": "skip", "legendgroup": s.label,
        }]  # fmt: skip
    values = [told(float(v), name) for v in s.mean]
    if s.std is not None:
        values = [f"{v} ± {told(float(d), name)}" for v, d in zip(values, s.std, strict=True)]
    line = {
        "type": "scatter", "mode": "lines+markers", "name": label, "legendgroup": s.label,
        "x": s.rounds, "y": plain(s.mean), "text": values,
        "hovertemplate": f"{label}<br>round %{{x}}: %{{text}}<extra></extra>",
        "line": {"color": look.colour, "dash": look.dash, "width": 2.2},
        "marker": {"symbol": look.symbol, "size": 8, "maxdisplayed": 9, "color": look.colour},
    }  # fmt: skip
    return [*band, line]


def _axis(found: Sequence[Series], name: str) -> dict[str, Any]:
    if name == "accuracy":
        return {"tickformat": ".0%"}
    if name == "beta":
        return {"range": [-0.03, 1.03]}
    values = np.concatenate([s.mean for s in found])
    wide = values.min() > 0 and values.max() > 10 * values.min()
    return {"type": "log", "tickvals": _decades(values.min(), values.max())} if wide else {}


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten from low to high; the powers alone where that would be many."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    return [float(f"{m}e{k}") for k in powers for m in ((1, 2, 5) if len(powers) <= 4 else (1,))]


def _table(found: Sequence[Series], name: str) -> Table:
    at = [dict(zip(s.rounds, range(len(s.rounds)), strict=True)) for s in found]
    rounds = sorted(set.union(*(set(a) for a in at)))
    rows = [
        [str(t), *(_entry(s, a.get(t), name) for s, a in zip(found, at, strict=True))]
        for t in (rounds[k] for k in thinned(len(rounds), ROWS))
    ]
    return Table(["round", *(s.label for s in found)], rows)


def _entry(s: Series, k: int | None, name: str) -> str:
    if k is None:
        return "–"
    spread = "" if s.std is None else f" ± {told(float(s.std[k]), name)}"
    return told(float(s.mean[k]), name) + spread


def plain(values: Any) -> list[float | None]:
    """Six digits of each, which is more than a screen shows; null where there is none."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]

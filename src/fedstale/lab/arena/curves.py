"""Curves of a cell as SVG: the training objective and the accuracy of every rule over the rounds or hours."""

import math
from collections.abc import Mapping
from html import escape

from fedstale.lab.arena.records import ACCURACY, Cell, Curve
from fedstale.lab.runs.metrics import OBJECTIVE, metric
from fedstale.view.plots.palette import Look, looks

WIDE, HIGH = 520, 300  # of a picture
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 22, 34  # margins
TICKS = 4


def pictures(cell: Cell) -> str:
    """The pictures of a cell, and which line is whose."""
    drawn_as = looks(list(cell.entries))
    found = ""
    for name in (OBJECTIVE, ACCURACY):
        drawn = {label: e.curves[name] for label, e in cell.entries.items() if name in e.curves}
        found += _picture(name, drawn, drawn_as, "round" if cell.hours is None else "hour") if drawn else ""
    keys = "".join(f"<li>{_sample(one)} {escape(label)}</li>" for label, one in drawn_as.items())
    return f'<div class="plots">{found}</div><ul class="keys">{keys}</ul>'


def _picture(name: str, curves: Mapping[str, Curve], shown_as: Mapping[str, Look], unit: str) -> str:
    """Objectives on a logarithmic axis, from the least value that is drawn to the first one of the best rule."""
    log, m = name == OBJECTIVE, metric(name)
    scaled = {label: [_height(v * m.scale, log) for v in c.values] for label, c in curves.items()}
    low = min(min(v) for v in scaled.values())
    high = max(max(min(v), v[0]) for v in scaled.values()) if log else max(max(v) for v in scaled.values())
    high = high if high > low else low + 1
    last = max(c.rounds[-1] for c in curves.values())

    def x(t: float) -> float:
        return LEFT + (WIDE - LEFT - RIGHT) * t / last

    def y(v: float) -> float:
        return HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * (min(max(v, low), high) - low) / (high - low)

    lines = ""
    for label, values in scaled.items():
        points = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in zip(curves[label].rounds, values, strict=True))
        lines += f'<polyline points="{points}" {_stroke(shown_as[label])}><title>{escape(label)}</title></polyline>'
    levels = [low + (high - low) * k / TICKS for k in range(TICKS + 1)]
    marks = "".join(_tick(y(level), level, log) for level in levels)
    axis = f"{m.axis}{', logarithmic' if log else ''}"
    return (
        f'<svg class="plot" viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{escape(axis)} over the {unit}s">'
        f'<text x="{LEFT}" y="14">{escape(axis)}</text>{marks}{lines}'
        f'<text x="{WIDE - RIGHT}" y="{HIGH - 8}" text-anchor="end">{unit} {last:.6g}</text></svg>'
    )


def _height(value: float, log: bool) -> float:
    return math.log10(max(value, 1e-12)) if log else value


def _tick(y: float, value: float, log: bool) -> str:
    text = f"{10**value if log else value:.3g}"
    line = f'<path d="M{LEFT} {y:.1f}H{WIDE - RIGHT}" stroke="#e5e5e5"/>'
    return f'{line}<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _stroke(one: Look) -> str:
    return f'fill="none" stroke="{one.colour}" stroke-width="1.6" stroke-dasharray="{" ".join(map(str, one.dash))}"'


def _sample(one: Look) -> str:
    return f'<svg width="32" height="10" aria-hidden="true"><path d="M0 5h32" {_stroke(one)}/></svg>'

"""Curves over rounds, hours, seconds or bytes, and smoothed ones."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Floats, require
from fedstale.lab.runs import status
from fedstale.lab.runs.metrics import ROUND_KEYS
from fedstale.lab.runs.query import Line
from fedstale.view.page.plots import Plot, plain
from fedstale.view.page.series import Lines, scale

AXES = {
    "round": "round", "hours": "hours of the clock", "seconds": "seconds of computing",
    "bytes": "bytes sent both ways",
}  # fmt: skip
FLOAT = 4  # bytes of a parameter


class View(NamedTuple):
    """How curves are drawn."""

    x: str = "round"  # a key of AXES
    smoothing: float = 0.0  # share of the smoothed value so far in the next one, below 1


def view(x: str, smoothing: str) -> View:
    """The view that a request asks for, checked."""
    require(x in AXES, f"x must be one of {', '.join(AXES)}, got {x[:20]!r}")
    try:
        share = float(smoothing)
    except ValueError:
        share = -1.0
    require(0 <= share < 1, f"smooth must be at least 0 and below 1, got {smoothing[:20]!r}")
    return View(x, share)


def smoothed(lines: Lines, view: View) -> Lines:
    """The same with an exponential moving average of every evaluated number, seed by seed."""
    seeds = [_average(seed, view.smoothing) if view.smoothing else seed for seed in lines.seeds]
    return lines._replace(seeds=seeds)


def _average(seed: Sequence[Line], share: float) -> list[Line]:
    """Corrected for its start, so that the first value is the first measurement."""
    sums: dict[str, tuple[float, float]] = {}
    found = []
    for line in seed:
        new = dict(line)
        for key, value in line.items():
            if key not in ROUND_KEYS and isinstance(value, int | float):
                total, weight = sums.get(key, (0.0, 0.0))
                sums[key] = total, weight = share * total + (1 - share) * value, share * weight + 1 - share
                new[key] = total / weight
        found.append(new)
    return found


def over(plot: Plot, lines: Sequence[Lines], view: View) -> Plot:
    """A plot of curves over rounds, with its x-axis in the units of the view; other plots as they are."""
    if view.x == "round" or plot.layout["xaxis"]["title"]["text"] != "round" or not plot.keys:
        return plot
    scales = {x.group.label: scale for x in lines if (scale := _scale(x, view.x))}
    if not all(trace.get("legendgroup") in scales for trace in plot.data):
        return plot
    data = [trace | {"x": plain(scales[trace["legendgroup"]](trace["x"]))} for trace in plot.data]
    xaxis = {key: value for key, value in plot.layout["xaxis"].items() if key != "dtick"}
    axis = {"title": {"text": AXES[view.x]}, **({"tickformat": ".3s"} if view.x == "bytes" else {})}
    data = [_told(t, view.x) for t in data]
    return plot._replace(data=data, layout=plot.layout | {"xaxis": xaxis | axis}, zoom=False)


def _told(trace: dict[str, Any], x: str) -> dict[str, Any]:
    said, unit = trace.get("hovertemplate"), "%{x:.4s}B" if x == "bytes" else f"%{{x:.4g}} {x[0]}"
    return trace | {"hovertemplate": said.replace("round %{x}", unit)} if said else trace


def _scale(lines: Lines, x: str) -> Callable[[Sequence[int]], Floats] | None:
    """From rounds to hours, seconds or bytes, mean over the seeds; None where a run did not record them."""
    if x == "hours" or (x == "bytes" and scale(lines, x)):
        return scale(lines, x)
    found = [status.read(run.folder) for run in lines.group.runs]
    if any(s is None for s in found):
        return None
    known = [s for s in found if s]
    if x == "seconds":
        return lambda rounds: np.mean([s.seconds_at(rounds) for s in known], axis=0)
    sums = [sent(seed, s.parameters) for seed, s in zip(lines.seeds, known, strict=True)]
    return lambda rounds: np.mean([np.interp(rounds, *total) for total in sums], axis=0)


def sent(seed: Sequence[Line], parameters: int) -> tuple[Floats, Floats]:
    """The rounds, and the bytes sent to clients that trained and back from those heard, up to each of them."""
    rounds = np.array([0, *(line["round"] for line in seed)], np.float64)
    messages = [line["available"] - len(line.get("not_selected", ())) + line["participants"] for line in seed]
    return rounds, np.concatenate([[0.0], np.cumsum(np.diff(rounds) * messages) * FLOAT * parameters])

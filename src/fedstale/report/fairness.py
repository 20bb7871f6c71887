"""Who is left behind: how well the final parameters serve each client."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedstale.core import Floats
from fedstale.plots.palette import Look
from fedstale.report.plots import Plot, Table
from fedstale.report.series import Lines, per_client, shares
from fedstale.report.style import faint, layout
from fedstale.runs.metrics import metric

WRAP = 18  # letters of a name on an axis
ACCURACY = metric("accuracy")


def served(lines: Sequence[Lines], looks: Mapping[str, Look]) -> Plot | None:
    """A box and a dot for each client, algorithm by algorithm."""
    found = [(g, values) for g in lines if (values := per_client(g, ACCURACY.name)) is not None]
    found = [(g, values) for g, values in found if np.isfinite(values).any()]
    if not found:
        return None
    data = [_box(g, values, looks[g.group.label]) for g, values in reversed(found)]
    worst = ", ".join(f"{g.group.label} {ACCURACY.text(np.nanmin(v))}" for g, v in found)
    said = f"Test accuracy of each client at the end. The worst served client: {worst}."
    axes = layout(
        "test accuracy of a client", "", xaxis={"tickformat": ".0%"}, yaxis={"ticks": "", "showgrid": False}
    )
    note = "A dot is a client, mean over the seeds, on its own test samples; the box holds the middle half."
    table = Table(["algorithm", "mean", "worst tenth", "worst client", "which was heard from in", "spread"],
                  [_row(g, values) for g, values in found])  # fmt: skip
    return Plot("Accuracy of each client: who is left behind", data, axes, said, table, note=note, rows=len(found))


def _box(lines: Lines, values: Floats, look: Look) -> dict[str, Any]:
    known = np.flatnonzero(np.isfinite(values))
    label, share = lines.group.label, shares(lines)
    text = [
        f"client {i}" + ("" if share is None else f", heard from in {share[i]:.0%} of the rounds") for i in known
    ]
    return {
        "type": "box", "orientation": "h", "x": [round(float(values[i]), 5) for i in known], "text": text,
        "name": wrapped(label), "boxpoints": "all", "jitter": 0.6, "pointpos": 0, "width": 0.7,
        "hoveron": "points", "hovertemplate": f"{escape(label)}, %{{text}}: %{{x:.1%}}<extra></extra>",
        "fillcolor": faint(look.colour), "line": {"color": look.colour, "width": 1.5},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 6, "opacity": 0.75},
    }  # fmt: skip


def wrapped(label: str) -> str:
    """A name on several short lines, so that it leaves room on a narrow screen."""
    lines = [""]
    for word in label.split():
        if lines[-1] and len(lines[-1]) + len(word) >= WRAP:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(escape(line) for line in lines)


def _row(lines: Lines, values: Floats) -> list[str]:
    known = np.sort(values[np.isfinite(values)])
    tenth = known[: max(1, len(known) // 10)]
    last, share = int(np.nanargmin(values)), shares(lines)
    often = "–" if share is None else f"{share[last]:.0%} of the rounds"
    mean, worst, lowest, std = map(ACCURACY.text, (known.mean(), tenth.mean(), known[0], known.std()))
    return [lines.group.label, mean, worst, f"client {last}: {lowest}", often, std]

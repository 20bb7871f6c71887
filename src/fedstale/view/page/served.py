"""How well each client is served at the end, by which score, and all that is known of each client in one table."""

import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedstale.core import Floats
from fedstale.lab.runs import metrics
from fedstale.lab.runs.metrics import Metric, metric, percent
from fedstale.lab.runs.query import client_values
from fedstale.lab.runs.statistics import tenth, thinned
from fedstale.lab.runs.verdict import compared_by
from fedstale.view.page.plots import CLIENTS, Key, Plot, Table, dots, faint, layout, plain, ticks
from fedstale.view.page.series import Lines, absences, names, per_client, shares
from fedstale.view.plots.palette import Look

EPSILON = metric("epsilon")
WRAP = 18  # letters of a name on an axis
Scores = list[tuple[Lines, Floats]]  # of groups, by client


def scored(lines: Sequence[Lines], by: Metric | None = None) -> tuple[Metric, Scores]:
    """The score that clients are compared by, the main one if they have it, and the groups that have it."""
    chosen = (by or compared_by(g.seeds[0][-1], client_values(g.group.runs[0].folder), g.group.config.get("main"))
              for g in lines)  # fmt: skip
    m = next(filter(None, chosen), metric("accuracy"))
    known = [(g, values) for g in lines if (values := per_client(g, m.name)) is not None]
    return m, [(g, values) for g, values in known if np.isfinite(values).any()]


def _short(m: Metric) -> str:
    return m._replace(label=m.label.removeprefix("test ")).title


def _format(m: Metric) -> str:
    return ".1%" if m.percent else ".4g"


def visited(lines: Sequence[Lines], looks: Mapping[str, Look], by: Metric | None = None) -> Plot | None:
    """The score of each client, or its ε, against how often it was heard from."""
    m, scores = scored(lines, by)
    known = [(g.group.label, v, often) for g, v in scores if (often := shares(g)) is not None]
    found = {label: (v, often) for label, v, often in known if len(often) == len(v) and np.ptp(often) > 0}
    if not found:
        return None
    data, rows = [], []
    called = names(lines[0], max(len(often) for _, often in found.values()))
    for label, (values, often) in found.items():
        order = np.argsort(often, kind="stable")
        who, hover = [called[i] for i in order], f"%{{text}}, in %{{x:.1%}} of the rounds: %{{y:{_format(m)}}}"
        data.append(dots(label, looks[label], values[order], who, hover) | {"x": plain(often[order])})
        some = [order[k] for k in thinned(len(order), CLIENTS)]
        rows += [[label, called[i].removeprefix("client "), percent(often[i]), m.text(values[i])] for i in some]
    rare = {label: v[often <= np.median(often)] for label, (v, often) in found.items()}
    told = ", ".join(f"{k} {m.text(float(np.nanmean(v)))}" for k, v in rare.items() if np.isfinite(v).any())
    axes = layout("share of rounds heard", f"its {m.label}", xaxis={"tickformat": ".2~%"}, yaxis=ticks(m))
    said = f"{m.title} of each client against how often it was heard from. The rarer half: {told}."
    table = Table(["algorithm", "client", "heard from", _short(m).lower()], rows)
    keys, note = [Key(k, looks[k], False) for k in found], "A dot is a client, mean over the seeds."
    return Plot(f"{_short(m)} against visits", data, axes, said, table, keys, note)


def served(lines: Sequence[Lines], looks: Mapping[str, Look]) -> Plot | None:
    """A box and a dot for each client, algorithm by algorithm."""
    m, found = scored(lines)
    if not found:
        return None
    often = {g.group.label: shares(g) for g, _ in found}
    data = [_box(g, values, often[g.group.label], looks[g.group.label], m) for g, values in reversed(found)]
    worst = ", ".join(f"{g.group.label} {m.text(v[_worst(v, m)[0]])}" for g, v in found)
    said = f"{m.title} of each client at the end. The worst served client: {worst}."
    axes = layout(f"{m.label} of a client", "", xaxis=ticks(m), yaxis={"ticks": "", "showgrid": False})
    note = "A dot is a client, mean over the seeds, on its own test samples; the box holds the middle half."
    table = Table(["algorithm", "mean", "worst tenth", "worst client", "which was heard from in", "spread"],
                  [_served_row(g, values, often[g.group.label], m) for g, values in found])  # fmt: skip
    title = f"{_short(m)} of each client: who is left behind"
    return Plot(title, data, axes, said, table, note=note, rows=len(found))


def _worst(values: Floats, m: Metric) -> list[int]:
    """The clients that have a score, the worst served first."""
    order = np.argsort([m.score(v) for v in values], kind="stable")
    return [int(i) for i in order if np.isfinite(values[i])]


def _box(lines: Lines, values: Floats, share: Floats | None, look: Look, m: Metric) -> dict[str, Any]:
    label, called = lines.group.label, names(lines, len(values))
    known = np.flatnonzero(np.isfinite(values))
    often = {i: "" if share is None else f", heard from in {percent(share[i], 0)} of the rounds" for i in known}
    text = [escape(called[i]) + often[i] for i in known]
    return {
        "type": "box", "orientation": "h", "x": [round(float(values[i]), 5) for i in known], "text": text,
        "name": wrapped(label), "boxpoints": "all", "jitter": 0.6, "pointpos": 0, "width": 0.7,
        "hoveron": "points", "hovertemplate": f"{escape(label)}, %{{text}}: %{{x:{_format(m)}}}<extra></extra>",
        "fillcolor": faint(look.colour), "line": {"color": look.colour, "width": 1.5},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 6, "opacity": 0.75},
    }  # fmt: skip


def wrapped(label: str) -> str:
    """A name on several short lines, so that it leaves room on a narrow screen."""
    return "<br>".join(map(escape, textwrap.wrap(label, WRAP, break_long_words=False, break_on_hyphens=False)))


def _served_row(lines: Lines, values: Floats, share: Floats | None, m: Metric) -> list[str]:
    order = _worst(values, m)
    known, last = values[order], order[0]
    often = "–" if share is None else f"{percent(share[last], 0)} of the rounds"
    least = known[: tenth(len(known))].mean()
    mean, worst, lowest, std = map(m.text, (known.mean(), least, known[0], known.std()))
    return [lines.group.label, mean, worst, f"{names(lines, len(values))[last]}: {lowest}", often, std]


def everyone(lines: Sequence[Lines]) -> Table | None:
    """A row for each client, the rarest first: its samples and labels, its absences, and how it is served."""
    share, absent = (shares(lines[0]), absences(lines[0])) if lines else (None, None)
    if share is None or absent is None:
        return None
    n, m = len(share), scored(lines)[0]
    values = client_values(lines[0].group.runs[0].folder)
    columns: dict[str, Sequence[str]] = {"heard from": [percent(x) for x in share]}
    columns |= {f"{what} absence, rounds": [f"{x:.3g}" for x in of] for what, of in absent.items()}
    if len(found := values.get("samples", [])) == n:
        columns["training samples"] = [f"{x:.0f}" if x else "0" for x in found]
    if len(found := values.get("labels", [])) == n:
        columns["its labels"] = [str(x) for x in found]
    for of in dict.fromkeys((m, metric("loss"), metric(metrics.OBJECTIVE))):
        scores = {g.group.label: v for g in lines if (v := per_client(g, of.name)) is not None and len(v) == n}
        columns |= {f"{of.label}, {label}": [of.text(x) for x in v] for label, v in scores.items()}
    order, called = np.argsort(share, kind="stable"), names(lines[0], n)
    rows = [[called[i], *(of[i] for of in columns.values())] for i in order[thinned(n, CLIENTS)]]
    return Table(["client", *columns], rows)

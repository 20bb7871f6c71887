"""Of each client: when it took part, how old its updates are, its weight, and how well it is served at the end."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedstale.core import Floats
from fedstale.lab.runs.metrics import Metric, metric
from fedstale.lab.runs.query import grouped
from fedstale.lab.runs.statistics import block_means, spread, thinned
from fedstale.view.page.plots import CLIENTS, ROWS, Key, Plot, Table, dots, faint, layout, plain, stroke
from fedstale.view.page.series import POINTS, Lines, names, per_client, shares, weights
from fedstale.view.plots.palette import DARK, Look, look

ACCURACY, EPSILON = metric("accuracy"), metric("epsilon")
WORDS = {"accuracy": ("Accuracy", "test accuracy"), "epsilon": ("ε", "ε")}
BLOCKS = 100  # of rounds, of a share over rounds
WRAP = 18  # letters of a name on an axis
DOTTED = {"color": "#888", "dash": "dot"}
FAIR = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": DOTTED}
STALENESS = ("median", "nine of ten clients at most", "oldest")


def alike(lines: Sequence[Lines]) -> list[tuple[str, Lines]]:
    """One group for each way in which the first seed's clients were heard from, and the names of all alike."""

    def heard(group: Lines) -> str:
        keys = ("heard", "not_selected", "lost", "staleness")
        return json.dumps([[line.get(key) for key in keys] for line in group.seeds[0]])

    found = grouped(lines, heard)
    if len(found) == 1:
        return [("all algorithms" if len(lines) > 1 else lines[0].group.label, lines[0])]
    return [(", ".join(g.group.label for g in groups), groups[0]) for groups in found.values()]


def heard_weight(names: str, lines: Lines) -> Plot | None:
    """The share of the objective's weight that was heard, in blocks of rounds; mean over the seeds."""
    run = min(lines.seeds, key=len)
    if not all("heard_weight" in line for seed in lines.seeds for line in seed):
        return None
    table = np.array([[line["heard_weight"] for line in seed[: len(run)]] for seed in lines.seeds])
    starts, means = block_means(table, BLOCKS)
    share, rounds = means.mean(axis=0), [run[k]["round"] for k in starts]
    trace = {
        "type": "scatter", "mode": "lines", "x": rounds, "y": plain(share), "line": {"color": DARK, "shape": "hv"},
        "hovertemplate": "from round %{x}: %{y:.1%} of the weight<extra></extra>",
    }  # fmt: skip
    size = -(-len(run) // BLOCKS)
    told = f"{share.min():.0%} to {share.max():.0%}, {share.mean():.0%} on average"
    said = f"Share of the objective's weight that was heard: {told}."
    note = (
        f"Σ aᵢ of the clients heard from{f', mean of {size} rounds each' if size > 1 else ''}; 100 % is everybody."
    )
    rows = [[str(rounds[k]), f"{share[k]:.1%}"] for k in thinned(len(rounds), ROWS)]
    axes = layout("round", "share of the weight", yaxis={"tickformat": ".2~%", "range": [0, 1.03]})
    table_ = Table(["from round", "share of the weight heard"], rows)
    return Plot(f"How much of the objective was heard: {names}", [trace], axes, said, table_, note=note)


def staleness(names: str, lines: Lines) -> Plot:
    """Rounds since each client was last heard from: the median, nine tenths, the oldest; mean over the seeds."""
    run = min(lines.seeds, key=len)  # seeds that stopped early have fewer rounds
    ages = spread([[line["staleness"] for line in seed[: len(run)]] for seed in lines.seeds]).mean  # (rounds, 3)
    kept = thinned(len(run), POINTS)
    rounds = [run[k]["round"] for k in kept]
    data = [
        {"type": "scatter", "mode": "lines", "x": rounds, "y": plain(ages[kept, k]), "legendgroup": name,
         "line": stroke(look(k), 2), "hovertemplate": f"{name}<br>round %{{x}}: %{{y:.3g}} rounds<extra></extra>"}
        for k, name in enumerate(STALENESS)
    ]  # fmt: skip
    middle, most, oldest = ages.mean(axis=0)
    told = f"median {middle:.1f}, 90 % quantile {most:.1f}, oldest {oldest:.1f} rounds"
    said = f"Staleness over {len(run)} rounds, on average: {told}."
    rows = [[str(run[k]["round"]), *(f"{v:.3g}" for v in ages[k])] for k in thinned(len(run), ROWS)]
    keys = [Key(name, look(k)) for k, name in enumerate(STALENESS)]
    return Plot(f"Staleness: {names}", data, layout("round", "rounds since last heard from"), said,
                Table(["round", *STALENESS], rows), keys)  # fmt: skip


def realised(lines: Sequence[Lines], looks: Mapping[str, Look]) -> Plot | None:
    """The weight that each client had in the steps, over its a_i: 1 is what the objective asks for."""
    found = [(g, w) for g in lines if (w := weights(g)) is not None]
    if not found:
        return None
    n, share, a = len(found[0][1]), shares(found[0][0]), per_client(found[0][0], "weight")
    a = np.full(n, 1 / n) if a is None or len(a) != n else np.where(a > 0, a, np.nan)
    ratios = {g.group.label: w / a for g, w in found}
    order = np.arange(n) if share is None else np.argsort(share, kind="stable")
    called, said_of = names(found[0][0], n), "%{text}: %{y:.3g} of its share"
    who = [called[i] for i in order]
    data = [dots(label, looks[label], ratio[order], who, said_of) for label, ratio in ratios.items()]
    ends = ", ".join(f"{label} {np.nanmin(r):.2f} to {np.nanmax(r):.2f}" for label, r in ratios.items())
    said = f"Realised weight of each of {n} clients relative to its weight in the objective, 1 being fair: {ends}."
    axes = layout("clients, the rarest first" if share is not None else "client", "realised weight / aᵢ")
    keys = [Key(label, looks[label], line=False) for label in ratios]
    note = "What each client's updates, fresh and remembered, counted on average; 1 is what the objective asks for."
    often = ["–"] * n if share is None else [f"{x:.1%}" for x in share]
    rows = [
        [called[i].removeprefix("client "), often[i], *(f"{r[i]:.3g}" for r in ratios.values())]
        for i in order[thinned(n, CLIENTS)]
    ]
    table = Table(["client", "heard from", *ratios], rows)
    return Plot("Realised weights", data, axes | {"shapes": [FAIR]}, said, table, keys, note)


def _scores(lines: Sequence[Lines], score: Metric = ACCURACY) -> list[tuple[Lines, Floats]]:
    """The groups that know this of clients one by one, with that of each."""
    known = [(g, values) for g in lines if (values := per_client(g, score.name)) is not None]
    return [(g, values) for g, values in known if np.isfinite(values).any()]


def visited(lines: Sequence[Lines], looks: Mapping[str, Look], score: Metric = ACCURACY) -> Plot | None:
    """The accuracy of each client, or its ε, against how often it was heard from."""
    known = [(g.group.label, v, often) for g, v in _scores(lines, score) if (often := shares(g)) is not None]
    found = {label: (v, often) for label, v, often in known if len(often) == len(v) and np.ptp(often) > 0}
    if not found:
        return None
    data, rows = [], []
    called = names(lines[0], max(len(often) for _, often in found.values()))
    for label, (values, often) in found.items():
        order = np.argsort(often, kind="stable")
        who = [called[i] for i in order]
        trace = dots(
            label,
            looks[label],
            values[order],
            who,
            f"%{{text}}, in %{{x:.1%}} of the rounds: %{{y:{'.1%' if score.percent else '.3g'}}}",
        )
        data.append(trace | {"x": plain(often[order])})
        some = [order[k] for k in thinned(len(order), CLIENTS)]
        rows += [[label, called[i].removeprefix("client "), f"{often[i]:.1%}", score.text(values[i])] for i in some]
    rare = {label: v[often <= np.median(often)] for label, (v, often) in found.items()}
    told = ", ".join(
        f"{label} {score.text(float(np.nanmean(v)))}" for label, v in rare.items() if np.isfinite(v).any()
    )
    percent, (title, what) = {"tickformat": ".2~%"}, WORDS[score.name]
    axes = layout("share of rounds heard", f"its {what}", xaxis=percent, yaxis=percent if score.percent else {})
    said = f"The {what} of each client against how often it was heard from. The rarer half, on average: {told}."
    table, keys = (
        Table(["algorithm", "client", "heard from", what], rows),
        [Key(k, looks[k], False) for k in found],
    )
    return Plot(f"{title} against visits", data, axes, said, table, keys, "A dot is a client, mean over the seeds.")


def served(lines: Sequence[Lines], looks: Mapping[str, Look]) -> Plot | None:
    """A box and a dot for each client, algorithm by algorithm."""
    found = _scores(lines)
    if not found:
        return None
    often = {g.group.label: shares(g) for g, _ in found}
    data = [_box(g, values, often[g.group.label], looks[g.group.label]) for g, values in reversed(found)]
    worst = ", ".join(f"{g.group.label} {ACCURACY.text(np.nanmin(v))}" for g, v in found)
    said = f"Test accuracy of each client at the end. The worst served client: {worst}."
    names = {"ticks": "", "showgrid": False}
    axes = layout("test accuracy of a client", "", xaxis={"tickformat": ".2~%"}, yaxis=names)
    note = "A dot is a client, mean over the seeds, on its own test samples; the box holds the middle half."
    table = Table(["algorithm", "mean", "worst tenth", "worst client", "which was heard from in", "spread"],
                  [_served_row(g, values, often[g.group.label]) for g, values in found])  # fmt: skip
    return Plot("Accuracy of each client: who is left behind", data, axes, said, table, note=note, rows=len(found))


def _box(lines: Lines, values: Floats, share: Floats | None, look: Look) -> dict[str, Any]:
    label, called = lines.group.label, names(lines, len(values))
    known = np.flatnonzero(np.isfinite(values))
    often = {i: "" if share is None else f", heard from in {share[i]:.0%} of the rounds" for i in known}
    text = [escape(called[i]) + often[i] for i in known]
    return {
        "type": "box", "orientation": "h", "x": [round(float(values[i]), 5) for i in known], "text": text,
        "name": wrapped(label), "boxpoints": "all", "jitter": 0.6, "pointpos": 0, "width": 0.7,
        "hoveron": "points", "hovertemplate": f"{escape(label)}, %{{text}}: %{{x:.1%}}<extra></extra>",
        "fillcolor": faint(look.colour), "line": {"color": look.colour, "width": 1.5},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 6, "opacity": 0.75},
    }  # fmt: skip


def wrapped(label: str) -> str:
    """A name on several short lines, so that it leaves room on a narrow screen."""
    return "<br>".join(map(escape, textwrap.wrap(label, WRAP, break_long_words=False, break_on_hyphens=False)))


def _served_row(lines: Lines, values: Floats, share: Floats | None) -> list[str]:
    known = np.sort(values[np.isfinite(values)])
    tenth = known[: max(1, len(known) // 10)]
    last = int(np.nanargmin(values))
    often = "–" if share is None else f"{share[last]:.0%} of the rounds"
    mean, worst, lowest, std = map(ACCURACY.text, (known.mean(), tenth.mean(), known[0], known.std()))
    return [lines.group.label, mean, worst, f"{names(lines, len(values))[last]}: {lowest}", often, std]

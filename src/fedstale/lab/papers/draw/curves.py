"""Figures of curves over rounds and of points over settings, each with what its paper shows beside them.

The panels of the thesis stand one above the other, to be read in a column of 3.4 inches; those of lossy links side
by side.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedstale.lab.papers.draw.style import About, by, learning_curves, levels, points, ratio, series, subplots
from fedstale.lab.papers.rates import Row
from fedstale.lab.runs.query import AWAY, HEARD, NOT_SELECTED, recorded_presence
from fedstale.view.plots.palette import ORANGE, SKY, look, looks
from fedstale.view.plots.pictures import draw_presence, logarithmic, patches

WIDTH, LEGEND = 3.4, 0.16  # inches: of the column, of a line of the legend
CLASSES = ("more\navailable", "less available,\ncorrelated", "less available,\nweakly corr.")
ACCURACY = "accuracy_last10"


def curves(rows: Sequence[Row], about: About) -> Figure:
    """Amplified updates, figures 1 and 2: training loss and test accuracy on each dataset."""
    panels = by(rows, "panel")
    figure, axes = subplots(len(panels), 2, (7.6, 3.3 * len(panels)))
    for places, ((panel,), group) in zip(axes, panels.items(), strict=True):
        learning_curves(places[0], group, "objective", log=True)
        learning_curves(places[1], group, "accuracy")
        for place in places:
            place.set_title(panel)
            place.set_xlabel(about.get("axes", {}).get("round", "round"))
    axes[0][0].legend(fontsize=7)
    return figure


def trajectories(rows: Sequence[Row], about: About) -> Figure:
    """FedStale, figure 1: the two objectives, where the first seed's models go, and the distance to the optimum."""
    groups = by(rows, "algorithm")
    figure, ((*axes,),) = subplots(1, 4, (12, 3.4))
    shown = [[], list(groups)[:2], list(groups)[2:]]
    titles = ["(a) client objectives", "(b) without and with all memory", "(c) a share of the memory"]
    data = rows[0].run.config()["data"]
    drawn = looks([label for (label,) in groups])
    for place, labels, title in zip(axes[:3], shown, titles, strict=True):
        _landscape(place, data)
        for key in groups:
            if key in labels:
                run = groups[key][:1]
                (_, x), (_, y) = series(run, "w1"), series(run, "w2")
                w1, w2 = ([start, *path[0]] for start, path in zip(data["start"], (x, y), strict=True))
                place.plot(w1, w2, label=key[0], color=drawn[key[0]].colour, linewidth=0.9)
        if labels:
            place.legend(loc="lower right", fontsize=7)
        place.set_title(title, fontsize=9)
    learning_curves(axes[3], rows, "distance", log=True)
    axes[3].legend(fontsize=7)
    axes[3].set_title(f"(d) {len(next(iter(groups.values())))} runs", fontsize=9)
    return figure


def _landscape(axes: Any, data: Mapping[str, Any]) -> None:
    centers, curvature = np.array(data["centers"]), np.array(data["curvature"])
    x, y = np.meshgrid(np.linspace(-12, 14, 200), np.linspace(-12, 14, 200))
    pairs = zip(centers, curvature, strict=True)
    values = [0.5 * (a[0] * (x - c[0]) ** 2 + a[1] * (y - c[1]) ** 2) for c, a in pairs]
    optimum = (curvature * centers).sum(axis=0) / curvature.sum(axis=0)
    for k, (value, center) in enumerate(zip(values, centers, strict=True)):
        colour = (ORANGE, SKY)[k]
        axes.contour(x, y, value, levels=[2, 8, 20, 40, 70], colors=colour, linewidths=0.6, alpha=0.7)
        axes.plot(*center, marker="o", color=colour, markersize=5)
        axes.annotate(f"$w_{k + 1}^*$", center, textcoords="offset points", xytext=(5, 4), fontsize=8)
    axes.plot(*optimum, marker="*", color="black", markersize=9, zorder=5)
    axes.annotate("$w^*$", optimum, textcoords="offset points", xytext=(6, 5), fontsize=8)
    axes.plot(*data["start"], marker="s", color="black", markersize=4)
    axes.set(xlabel="$w_1$", ylabel="$w_2$", aspect="equal", xlim=(-12, 14), ylim=(-12, 14))


def lines(rows: Sequence[Row], about: About) -> Figure:
    """FedStale, figures 3 and 4: test accuracy over one of the two heterogeneities."""
    (along, name), panels = next(iter(about["axes"].items())), by(rows, "panel")
    figure, axes = subplots(1, len(panels), (3.6 * len(panels) + 1.5, 3.5))
    over = {value: ratio(value) if along == "p_min" else value for value in levels(rows, along)}
    for place, ((panel,), group) in zip(axes[0], panels.items(), strict=True):
        points(place, group, lambda row: over[row.place[along]], ACCURACY)
        if along == "p_min":
            place.set_xscale("log")
            ticks = sorted({over[row.place[along]] for row in group})
            place.set_xticks(ticks, [f"{x:g}" for x in ticks], minor=False)
            place.set_xticks([], minor=True)
        place.set(xlabel=name, title=panel)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center")
    return figure


def importance(rows: Sequence[Row], about: About) -> Figure:
    """Thesis, figure 2.1: accuracy on each dataset, and how much each class of clients counted on the first."""
    figure, axes, panels = _accuracies(rows)
    first = next(iter(panels.values()))
    groups = by(first, "algorithm")
    drawn, width = looks([label for (label,) in groups]), 0.85 / len(groups)  # of a bar; the classes are 1 apart
    for k, ((label,), group) in enumerate(groups.items()):
        runs = [row.run.metrics()[-1] for row in group if not row.diverged]
        if runs:
            weights = np.mean([line["weights"] for line in runs], axis=0)  # (n,) mean realised weight
            quarters = np.array_split(weights * len(weights), 4)
            bars = [np.concatenate(quarters[:2]).mean(), quarters[2].mean(), quarters[3].mean()]
            places = np.arange(3) + (k + 0.5 - len(groups) / 2) * width
            axes.bar(places, bars, width, color=drawn[label].colour)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(3), CLASSES)
    axes.set(ylabel="weight / target", title=f"{first[0].place.get('panel', '')}: mean realised weight")
    return figure


def tradeoff(rows: Sequence[Row], about: About) -> Figure:
    """Thesis, figure 2.2: the curves for each κ̄², and the best κ̄² for each length of training."""
    figure, axes, panels = _accuracies(rows)
    for k, ((panel,), group) in enumerate(panels.items()):
        curves = {kappa2: series(of, "accuracy") for (kappa2,), of in by(group, "kappa2").items() if kappa2 != ""}
        if found := {kappa2: curve for kappa2, curve in curves.items() if curve[0]}:
            rounds = next(iter(found.values()))[0]
            means = np.array([values.mean(axis=0) for _, values in found.values()])  # (κ̄², rounds)
            best = np.array(list(found))[means.argmax(axis=0)]
            axes.plot(rounds, best, drawstyle="steps-post", label=str(panel), **look(k).line)
    axes.set(xlabel="length of training (rounds)", ylabel="best $\\bar\\kappa^2$", yscale="log")
    axes.grid(alpha=0.25)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def _accuracies(rows: Sequence[Row]) -> tuple[Figure, Any, dict[tuple[Any, ...], list[Row]]]:
    """The curves of each panel, with one legend beneath: the figure, a place that is left free, and the panels."""
    panels = by(rows, "panel")
    figure, axes, legend = _stack(len(panels) + 1, len(by(rows, "algorithm")))
    for place, ((panel,), group) in zip(axes, panels.items(), strict=False):
        learning_curves(place, group, "accuracy")
        place.set_title(panel)
    _shared(legend, axes[0])
    return figure, axes[-1], panels


def over(rows: Sequence[Row], about: About) -> Figure:
    """Thesis, figures 2.3, D.1: test accuracy over a setting; a panel "A, B" of one point is a line in panel A."""
    along, name = next(iter(about["axes"].items()))
    panels = {panel: group for (panel,), group in by(rows, "panel").items()}
    single = [panel for panel, group in panels.items() if len({row.place[along] for row in group}) == 1]
    lines = [panel for panel in single if panel.split(", ")[0] in {*panels} - {panel}]
    figure, axes, legend = _stack(len(panels) - len(lines), len(by(rows, "algorithm")) + len(lines), height=2.6)
    for place, panel in zip(axes, (panel for panel in panels if panel not in lines), strict=True):
        points(place, panels[panel], lambda row: row.place[along], ACCURACY)
        for line in (line for line in lines if line.startswith(f"{panel}, ")):
            height = np.mean([100 * row.values[ACCURACY] for row in panels[line] if not row.diverged])
            place.axhline(height, color="black", linestyle="--", linewidth=1, label=line.removeprefix(f"{panel}, "))
        place.set(xlabel=name, title=panel)
    _shared(legend, axes[0])
    return figure


def estimates(rows: Sequence[Row], about: About) -> Figure:
    """Thesis, figure 2.4: how wrong the estimates are, and the accuracy, over the warm-up rounds."""
    figure, (above, below), legend = _stack(2, len(by(rows, "algorithm")))
    errors = {"probs_error": "of $\\hat\\pi$", "mixing_error": "of $\\hat\\lambda$"}
    for k, (column, label) in enumerate(errors.items()):
        groups = by(rows, "warmup_rounds").items()
        at = {key: np.mean([row.values[column] for row in some]) for (key,), some in groups}
        above.plot(list(at), list(at.values()), label=label, marker="os"[k], markersize=3, **look(k).line)
    above.set(xlabel="warm-up rounds", ylabel="mean absolute error", xscale="log")
    logarithmic(above)
    above.grid(alpha=0.25)
    above.legend()
    points(below, rows, lambda row: row.place["warmup_rounds"], ACCURACY)
    below.set(xlabel="warm-up rounds", xscale="log")
    _shared(legend, below)
    return figure


def clusters(rows: Sequence[Row], about: About) -> Figure:
    """Thesis, figure 2.5: who was there and who was left out, by division of the data; accuracy on the last."""
    panels = by(rows, "panel")
    figure, axes, legend = _stack(len(panels) + 1, 3 + len(by(rows, "algorithm")), height=1.35)
    for place, ((panel,), group) in zip(axes, panels.items(), strict=False):
        runs = [r for r in group if r.algorithm == group[0].algorithm and not r.diverged]
        found = [(r, recorded_presence(r.run)) for r in runs]
        if found:
            row, cells = max(found, key=lambda pair: int((pair[1] == NOT_SELECTED).sum()))  # the most telling
            draw_presence(place, cells)
            place.tick_params(labelbottom=False)
            place.set_xlabel("")
            place.set_title(f"{panel}: {row.algorithm}, seed {row.seed}", fontsize=7.5)
    axes[len(panels) - 1].tick_params(labelbottom=True)
    names = {HEARD: "trains", NOT_SELECTED: "there, left out", AWAY: "away"}
    learning_curves(axes[-1], panels[list(panels)[-1]], "accuracy")
    axes[-1].set_title(list(panels)[-1][0], fontsize=7.5)
    _shared(legend, axes[-1], patches(names))
    return figure


def losses(rows: Sequence[Row], about: About) -> Figure:
    """Thesis, figures 4.1 and 4.2: loss and accuracy over lossy links, and UPGA-PL's lead by draw of the data."""
    panels = by(rows, "panel")
    one, n = len(panels) == 1, max(2, len(panels))
    figure, axes = subplots(3 - one, n, (3.0 * n, 6.6 - 2.2 * one))
    objective, accuracy = (axes[0, :1], axes[0, 1:]) if one else axes[:2]
    lead, legend = axes[-1, :2]
    for k, ((panel,), group) in enumerate(panels.items()):
        learning_curves(objective[k], group, "objective", log=True)
        learning_curves(accuracy[k], group, "accuracy")
        objective[k].set_title("" if one else textwrap.fill(panel, 28))
        objective[k].set_xlabel("round" if one else "")
        leads = np.sort(_leads(group, "UPGA-PL", "DMA-PL"))
        lead.plot(leads, label=panel, marker="os"[k % 2], markersize=3, **look(k).line)
    lead.axhline(0, color="black", linewidth=0.8, linestyle=":")
    lead.set(xlabel="draws of the data, sorted", ylabel="points", title="UPGA-PL above DMA-PL at the end")
    for empty in axes[-1, 1:]:
        empty.axis("off")
    curves, draws = objective[0].get_legend_handles_labels()[0], lead.get_legend_handles_labels()[0]
    legend.add_artist(legend.legend(handles=curves, loc="upper left", title="curves"))
    if not one:
        legend.legend(handles=draws, loc="lower left", title="leads")
    return figure


def _leads(rows: Sequence[Row], first: str, second: str) -> list[float]:
    """By how many points of accuracy an algorithm leads another in each cell, mean over the seeds."""
    ends = {key: [100 * r.values[ACCURACY] for r in some if not r.diverged]
            for key, some in by(rows, "data.seed", "algorithm").items()}  # fmt: skip
    return [float(np.mean(ends[cell, first]) - np.mean(ends[cell, second])) for cell in {key[0] for key in ends}]


def _stack(count: int, entries: int, height: float = 1.75) -> tuple[Figure, Any, Any]:
    """Figure, panels from top to bottom, and beneath them a place for a legend of so many entries."""
    lines = (entries + 1) // 2
    room = LEGEND * lines + 0.1
    total = height * count + room + 0.8  # title and note
    figure, axes = subplots(count + 1, 1, (WIDTH, total), height_ratios=[height] * count + [room])
    axes = axes[:, 0]
    axes[-1].axis("off")
    return figure, axes[:-1], axes[-1]


def _shared(place: Any, axes: Any, more: Sequence[Any] = ()) -> None:
    """The legend of all panels: what `axes` shows, and more."""
    handles = [*axes.get_legend_handles_labels()[0], *more]
    place.legend(handles=handles, loc="center", ncols=2, borderaxespad=0, handlelength=2.2)

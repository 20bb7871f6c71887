"""The figures of Rodio and Neglia, FedStale: leveraging Stale Updates in Federated Learning, ECAI 2024."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedstale.lab.papers.draw import style
from fedstale.lab.papers.draw.style import About, Drawing, by, learning_curves, levels, series, subplots
from fedstale.lab.papers.rates import Row
from fedstale.view.plots.palette import ORANGE, SKY, STYLE, looks

METRIC = "accuracy_last10"


def trajectories(rows: Sequence[Row], about: About) -> Figure:
    """Figure 1: the two objectives, where the first seed's models go, and the distance to the optimum."""
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


def heatmap(rows: Sequence[Row], about: About) -> Figure:
    """Figure 2: in each cell the best β, and what FedAvg and FedVARP lose to it, in points."""
    p, q = (levels(rows, key) for key in ("p_min", "swap.fraction"))
    panels = by(rows, "panel")
    size = ((0.6 + 0.95 * len(p)) * len(panels) + 1.0, 1.6 + 0.6 * len(q))
    figure, (places,) = subplots(1, len(panels), size, sharey=True)
    for axes, ((panel,), group) in zip(places, panels.items(), strict=True):
        cells = {key: best(some) for key, some in by(group, "p_min", "swap.fraction").items()}
        image = axes.imshow([[cells[x, y][0] for x in p] for y in q], cmap="Blues", vmin=0, vmax=1.25,
                            origin="lower", aspect="auto")  # fmt: skip
        for (x, y), gained in cells.items():
            _write_gains(axes, p.index(x), q.index(y), *gained)
        style.heterogeneity_axes(axes, p, q)
        axes.set(xlabel="participation heterogeneity $p_{avg} / p_{min}$", title=panel if len(panels) > 1 else "")
    places[0].set_ylabel("data heterogeneity $\\hat\\sigma^2$")
    bar = figure.colorbar(image, ax=places, ticks=[0, 0.2, 0.5, 0.8, 1], boundaries=np.linspace(0, 1, 101))
    bar.set_label("best β")
    return figure


def _write_gains(axes: Any, x: float, y: float, beta: float, over_avg: float, over_varp: float) -> None:
    text = f"$\\beta$={beta:g}\n$\\Delta_0$ {over_avg:.2f}\n$\\Delta_1$ {over_varp:.2f}"
    axes.text(x, y, text, ha="center", va="center", fontsize=7, color="white" if beta > 0.75 else "black")


def best(group: Sequence[Row]) -> tuple[float, float, float]:
    """β_opt and its gains over β = 0 and β = 1, in points of test accuracy."""
    means = {
        beta: 100 * float(np.mean([0.0 if row.diverged else row.values[METRIC] for row in some]))
        for (beta,), some in by(group, "beta").items()
    }
    top = max(means, key=lambda beta: means[beta])
    return top, means[top] - means.get(0.0, np.nan), means[top] - means.get(1.0, np.nan)


def lines(rows: Sequence[Row], about: About) -> Figure:
    """Figures 3 and 4: test accuracy over one of the two heterogeneities."""
    (along, name), panels = next(iter(about["axes"].items())), by(rows, "panel")
    figure, axes = subplots(1, len(panels), (3.6 * len(panels) + 1.5, 3.5))
    over = {value: style.ratio(value) if along == "p_min" else value for value in levels(rows, along)}
    for place, ((panel,), group) in zip(axes[0], panels.items(), strict=True):
        style.points(place, group, lambda row: over[row.place[along]], METRIC)
        if along == "p_min":
            place.set_xscale("log")
            ticks = sorted({over[row.place[along]] for row in group})
            place.set_xticks(ticks, [f"{x:g}" for x in ticks], minor=False)
            place.set_xticks([], minor=True)
        place.set(xlabel=name, title=panel)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center")
    return figure


def gains(rows: Sequence[Row], about: About) -> Figure:
    """Figure 5: the best β and its gains, with exact and with estimated probabilities."""
    p, panels = levels(rows, "p_min"), by(rows, "panel")
    figure, ((axes,),) = subplots(1, 1, (1.8 + 0.95 * len(p), 1.0 + 0.75 * len(panels)))
    for y, ((panel,), group) in enumerate(reversed(panels.items())):
        axes.text(-0.75, y, panel, ha="right", va="center", fontsize=8)
        for (p_min,), some in by(group, "p_min").items():
            x, gained = p.index(p_min), best(some)
            colour = matplotlib.colormaps["Blues"](gained[0] / 1.25)
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour))
            _write_gains(axes, x, y, *gained)
    axes.set(
        xlim=(-1.9, len(p) - 0.4),
        ylim=(-0.55, len(panels) - 0.45),
        xlabel="participation heterogeneity $p_{avg} / p_{min}$",
    )
    style.heterogeneity_axes(axes, p, [])
    return figure


BARE = STYLE | {"axes.spines.left": False, "axes.spines.bottom": False}
DRAW = {
    "trajectories": Drawing(trajectories, STYLE), "heatmap": Drawing(heatmap, style.FRAMED),
    "lines": Drawing(lines, STYLE), "gains": Drawing(gains, BARE),
}  # fmt: skip

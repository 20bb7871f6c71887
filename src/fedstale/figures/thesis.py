"""The figures of Rodio, Client Heterogeneity in Federated Learning Systems, thesis, 2024."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from fedstale.figures.paper import STYLE, Row, by, learning_curves, points, save, series, style
from fedstale.store import RunFolder

CLASSES = ("more available", "less available,\ncorrelated", "less available,\nweakly corr.")


def importance(rows: Sequence[Row], folder: Path, about: Mapping[str, Any], note: str, path: Path) -> None:
    """Figure 2.1: accuracy on each dataset, and how much each class of clients counted on the first."""
    panels = by(rows, "panel")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(panels) + 1, figsize=(3.7 * (len(panels) + 1), 3.5), layout="constrained"
        )
        for place, ((panel,), group) in zip(axes, panels.items(), strict=False):
            learning_curves(place, group, folder, "accuracy")
            place.set_title(panel)
        axes[0].legend(fontsize=7)
        _importance(axes[-1], next(iter(panels.values())), folder)
        save(figure, path, about["title"], note)


def _importance(axes: Any, rows: Sequence[Row], folder: Path) -> None:
    groups = by(rows, "algorithm")
    for k, ((label,), group) in enumerate(groups.items()):
        runs = [RunFolder(folder / row["run"]).metrics()[-1] for row in group if not row["diverged"]]
        if runs:
            weights = np.mean([line["weights"] for line in runs], axis=0)  # (n,) mean realised weight
            quarters = np.array_split(weights * len(weights), 4)
            bars = [np.concatenate(quarters[:2]).mean(), quarters[2].mean(), quarters[3].mean()]
            axes.bar(np.arange(3) + (k - len(groups) / 2) * 0.16, bars, 0.15, label=label, color=style(k)["color"])
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(3), CLASSES, fontsize=7)
    axes.set(ylabel="mean realised weight / target weight", title=rows[0].get("panel", ""))


def tradeoff(rows: Sequence[Row], folder: Path, about: Mapping[str, Any], note: str, path: Path) -> None:
    """Figure 2.2: the curves for each κ̄², and the best κ̄² for each length of training."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.7), layout="constrained")
        learning_curves(left, rows, folder, "accuracy")
        figure.legend(*left.get_legend_handles_labels(), loc="outside right upper")
        swept = {key[0]: group for key, group in by(rows, "kappa2").items() if key[0] != ""}
        found = {kappa2: series(group, folder, "accuracy") for kappa2, group in swept.items()}
        found = {kappa2: pair for kappa2, pair in found.items() if pair[0]}
        rounds = next(iter(found.values()))[0]
        means = np.array([values.mean(axis=0) for _, values in found.values()])  # (κ̄², rounds)
        right.plot(rounds, np.array(list(found))[means.argmax(axis=0)], drawstyle="steps-post", color="black")
        right.set(xlabel="length of training (rounds)", ylabel="best $\\bar\\kappa^2$", yscale="log")
        right.grid(alpha=0.25)
        save(figure, path, about["title"], note)


def over(rows: Sequence[Row], folder: Path, about: Mapping[str, Any], note: str, path: Path) -> None:
    """Figure 2.3: test accuracy over data heterogeneity."""
    along, name = next(iter(about["axes"].items()))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(5.2, 3.8), layout="constrained")
        points(axes, rows, along, "accuracy_last10")
        axes.set_xlabel(name)
        axes.legend(fontsize=7)
        save(figure, path, about["title"], note)


def losses(rows: Sequence[Row], folder: Path, about: Mapping[str, Any], note: str, path: Path) -> None:
    """Figures 4.1 and 4.2: training loss and test accuracy over lossy links."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.5), layout="constrained")
        learning_curves(left, rows, folder, "objective", log=True)
        learning_curves(right, rows, folder, "accuracy")
        left.legend(fontsize=7)
        save(figure, path, about["title"], note)


DRAW = {"importance": importance, "tradeoff": tradeoff, "over": over, "losses": losses}

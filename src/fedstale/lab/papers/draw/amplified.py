"""The figures of Wang and Ji, A Unified Analysis of Federated Learning with Arbitrary Client Participation."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from fedstale.lab.papers.draw.style import About, Drawing, by, learning_curves, subplots
from fedstale.lab.papers.rates import Row
from fedstale.view.plots.palette import STYLE


def curves(rows: Sequence[Row], about: About) -> Figure:
    """Figures 1 and 2: training loss and test accuracy on each dataset."""
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


DRAW = {"curves": Drawing(curves, STYLE)}

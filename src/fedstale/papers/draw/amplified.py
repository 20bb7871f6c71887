"""The figures of Wang and Ji, A Unified Analysis of Federated Learning with Arbitrary Client Participation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from fedstale.papers.draw.style import Row, by, learning_curves, save, subplots
from fedstale.plots.palette import STYLE


def curves(rows: Sequence[Row], folder: Path, about: Mapping[str, Any], note: str, path: Path) -> None:
    """Figures 1 and 2: training loss and test accuracy after the warm-up, on each dataset."""
    panels = by(rows, "panel")
    with matplotlib.rc_context(STYLE):
        figure, axes = subplots(len(panels), 2, (7.6, 3.3 * len(panels)))
        for places, ((panel,), group) in zip(axes, panels.items(), strict=True):
            learning_curves(places[0], group, folder, "objective", log=True)
            learning_curves(places[1], group, folder, "accuracy")
            for place in places:
                place.set_title(panel)
                place.set_xlabel("round after the warm-up")
        axes[0][0].legend(fontsize=7)
        save(figure, path, about["title"], note)


DRAW = {"curves": curves}

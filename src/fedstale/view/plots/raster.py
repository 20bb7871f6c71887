"""The raster of presence: clients × rounds, who was heard from, who was there and not selected, who was lost."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from fedstale.lab.runs.query import AWAY, HEARD, LOST, NOT_SELECTED, States
from fedstale.lab.runs.statistics import block_means, thinned
from fedstale.view.plots.palette import DARK, GREY, ORANGE, PINK

COLOURS = {AWAY: "#FFFFFF", HEARD: DARK, NOT_SELECTED: ORANGE, LOST: PINK}
CLIENTS, ROUNDS = 1024, 2000  # cells that a picture shows apart: of more clients some, of more rounds blocks


def draw(axes: Any, states: States, most: tuple[int, int] = (CLIENTS, ROUNDS)) -> int:
    """Paint the states (clients, rounds) and return how many clients are drawn.

    Of more clients than `most` evenly spaced ones are drawn; of more rounds a cell mixes the colours of a block.
    """
    n, rounds = states.shape
    kept = thinned(n, most[0])
    image = np.ones((len(kept), min(rounds, most[1]), 3))
    for state in (HEARD, NOT_SELECTED, LOST):
        _, share = block_means(states[kept] == state, most[1])
        image = image[:, : share.shape[1]] - share[..., None] * (1 - np.array(to_rgb(COLOURS[state])))
    axes.imshow(image.clip(0, 1), aspect="auto", interpolation="nearest", origin="lower",
                extent=(0.5, rounds + 0.5, -0.5, n - 0.5))  # fmt: skip
    axes.set(xlabel="round", ylabel="client")
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)  # there is no client 2.5
    return len(kept)


def patches(names: Mapping[int, str]) -> list[Patch]:
    """The legend of a raster: a name for each state."""
    return [Patch(facecolor=COLOURS[state], edgecolor=GREY, label=name) for state, name in names.items()]

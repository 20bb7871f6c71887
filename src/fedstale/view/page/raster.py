"""The raster of a run: client by round, who was heard from, not selected, or lost."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Mask
from fedstale.lab.runs.query import HEARD, LOST, NOT_SELECTED, Line, names_clients, presence
from fedstale.lab.runs.statistics import block_means, thinned
from fedstale.view.page.plots import CLIENTS, ROWS, Plot, Table, layout
from fedstale.view.page.series import POINTS, Lines
from fedstale.view.page.series import names as client_names
from fedstale.view.plots.palette import DARK, ORANGE, PINK


class Kind(NamedTuple):
    """What a cell of the raster can be besides empty."""

    state: int
    colour: str
    name: str  # of the colour, on a light page and on a dark one
    what: str


KINDS = (
    Kind(HEARD, DARK, "filled", "heard from"),
    Kind(NOT_SELECTED, ORANGE, "orange", "there, but not selected"),
    Kind(LOST, PINK, "pink", "asked, but lost or refused"),
)


def raster(names: str, lines: Lines) -> Plot:
    """Client by round; where the metrics do not name the clients, how many took part."""
    run = lines.seeds[0]
    if not names_clients(run):
        return _counts(names, lines)
    states = presence(lines.group.config, run)
    n, kept = len(states), thinned(len(states), CLIENTS)
    maps = [kind for kind in KINDS if (states == kind.state).any()]
    called = [name.removeprefix("client ") for name in client_names(lines, n)]
    data = [_map(states[kept] == kind.state, [called[i] for i in kept], run, kind) for kind in maps]
    share, *others = ((states == kind.state).mean(axis=1) for kind in KINDS)
    said = (
        f"Raster of {n} clients over {len(run)} rounds: a filled cell is an update that the server used. "
        f"A client was heard from in {share.min():.0%} to {share.max():.0%} of the rounds."
    )
    rows = [[called[i], *(f"{of[i]:.1%}" for of in (share, *others))] for i in kept]
    table = Table(["client", "heard from, of the rounds", *(kind.what for kind in KINDS[1:])], rows)
    block = -(-len(run) // POINTS)
    told = ", ".join(f"{kind.name}: {kind.what}" for kind in maps) or "nobody was heard from"
    note = f"Seed {lines.group.runs[0].seed}; {told}."
    note += f" {len(kept)} of {n} clients are drawn, evenly spaced." * (len(kept) < n)
    note += f" A cell is {block} rounds: the stronger, the more of them." * (block > 1)
    return Plot(f"Who took part: {names}", data, layout("round", "client"), said, table, note=note)


def _map(cells: Mask, called: Sequence[str], run: Sequence[Line], kind: Kind) -> dict[str, Any]:
    starts, means = block_means(cells, POINTS)
    return {
        "type": "heatmap", "x": [run[k]["round"] for k in starts],
        "y": [int(name) if name.isdecimal() else name for name in called],
        "z": [[round(float(v), 2) or None for v in row] for row in means], "zmin": 0, "zmax": 1,
        "colorscale": [[0, "#ffffff"], [1, kind.colour]], "showscale": False, "hoverongaps": False,
        "hovertemplate": f"client %{{y}}, round %{{x}}: {kind.what}<extra></extra>",
    }  # fmt: skip


def _counts(names: str, lines: Lines) -> Plot:
    run = lines.seeds[0]
    kept = [run[k] for k in thinned(len(run), POINTS)]
    counts = [line["participants"] for line in kept]
    trace = {
        "type": "scatter", "mode": "lines", "x": [line["round"] for line in kept], "y": counts,
        "line": {"color": DARK}, "hovertemplate": "round %{x}: %{y} clients<extra></extra>",
    }  # fmt: skip
    said = f"Clients heard from in each round: {min(counts)} to {max(counts)}, {np.mean(counts):.1f} on average."
    rows = [[str(kept[k]["round"]), str(counts[k])] for k in thinned(len(kept), ROWS)]
    note = "There are too many clients to name each of them in every round: their number is drawn."
    return Plot(f"How many took part: {names}", [trace], layout("round", "clients"), said,
                Table(["round", "clients heard from"], rows), note=note)  # fmt: skip

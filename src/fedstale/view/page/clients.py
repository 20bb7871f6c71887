"""Of each client: when it took part, how old its updates are, and its weight; in runs, and in recorded files."""

import csv
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import BadInput, Floats, Mask
from fedstale.lab.runs.metrics import percent
from fedstale.lab.runs.query import HEARD, LOST, NOT_SELECTED, Line, grouped, names_clients, presence
from fedstale.lab.runs.statistics import block_means, spread, thinned
from fedstale.view.page.plots import CLIENTS, ROWS, Key, Plot, Table, dots, layout, level, plain, scatter, stroke
from fedstale.view.page.series import POINTS, Lines, names, per_client, shares, weights
from fedstale.view.plots.palette import DARK, ORANGE, PINK, Look, look

BLOCKS = 100  # of rounds, of a share over rounds
STALENESS = ("median", "nine of ten clients at most", "oldest")
COLUMNS = ("client", "share", "mixing", "longest_absence", "weight", "plain_weight")  # of a recorded file


def alike(lines: Sequence[Lines]) -> list[tuple[str, Lines]]:
    """One group for each way in which the first seed's clients were heard from, and the names of all alike."""

    def heard(group: Lines) -> str:
        keys = ("heard", "not_selected", "lost", "staleness")
        return json.dumps([[line.get(key) for key in keys] for line in group.seeds[0]])

    found = grouped(lines, heard)
    if len(found) == 1:
        return [("all algorithms" if len(lines) > 1 else lines[0].group.label, lines[0])]
    return [(", ".join(g.group.label for g in groups), groups[0]) for groups in found.values()]


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


def raster(who: str, lines: Lines) -> Plot:
    """Client by round; where the metrics do not name the clients, how many took part."""
    run = lines.seeds[0]
    if not names_clients(run):
        return _counts(who, lines)
    states = presence(lines.group.config, run)
    n, kept = len(states), thinned(len(states), CLIENTS)
    maps = [kind for kind in KINDS if (states == kind.state).any()]
    called = [name.removeprefix("client ") for name in names(lines, n)]
    data = [_map(states[kept] == kind.state, [called[i] for i in kept], run, kind) for kind in maps]
    share, *others = ((states == kind.state).mean(axis=1) for kind in KINDS)
    said = (
        f"Raster of {n} clients over {len(run)} rounds: a filled cell is an update that the server used. "
        f"A client was heard from in {percent(share.min(), 0)} to {percent(share.max(), 0)} of the rounds."
    )
    rows = [[called[i], *(percent(of[i]) for of in (share, *others))] for i in kept]
    table = Table(["client", "heard from, of the rounds", *(kind.what for kind in KINDS[1:])], rows)
    block = -(-len(run) // POINTS)
    told = ", ".join(f"{kind.name}: {kind.what}" for kind in maps) or "nobody was heard from"
    note = f"Seed {lines.group.runs[0].seed}; {told}."
    note += f" {len(kept)} of {n} clients are drawn, evenly spaced." * (len(kept) < n)
    note += f" A cell is {block} rounds: the stronger, the more of them." * (block > 1)
    return Plot(f"Who took part: {who}", data, layout("round", "client"), said, table, note=note)


def _map(cells: Mask, called: Sequence[str], run: Sequence[Line], kind: Kind) -> dict[str, Any]:
    starts, means = block_means(cells, POINTS)
    return {
        "type": "heatmap", "x": [run[k]["round"] for k in starts],
        "y": [int(name) if name.isdecimal() else name for name in called],
        "z": [[round(float(v), 2) or None for v in row] for row in means], "zmin": 0, "zmax": 1,
        "colorscale": [[0, "#ffffff"], [1, kind.colour]], "showscale": False, "hoverongaps": False,
        "hovertemplate": f"client %{{y}}, round %{{x}}: {kind.what}<extra></extra>",
    }  # fmt: skip


def _counts(who: str, lines: Lines) -> Plot:
    run = lines.seeds[0]
    kept = [run[k] for k in thinned(len(run), POINTS)]
    counts = [line["participants"] for line in kept]
    rounds = [line["round"] for line in kept]
    trace = scatter("lines", rounds, counts, "round %{x}: %{y} clients", line={"color": DARK})
    said = f"Clients heard from in each round: {min(counts)} to {max(counts)}, {np.mean(counts):.1f} on average."
    rows = [[str(rounds[k]), str(counts[k])] for k in thinned(len(kept), ROWS)]
    note = "There are too many clients to name each of them in every round: their number is drawn."
    return Plot(f"How many took part: {who}", [trace], layout("round", "clients"), said,
                Table(["round", "clients heard from"], rows), note=note)  # fmt: skip


def heard_weight(who: str, lines: Lines) -> Plot | None:
    """The share of the objective's weight that was heard, in blocks of rounds; mean over the seeds."""
    run = min(lines.seeds, key=len)
    if not all("heard_weight" in line for seed in lines.seeds for line in seed):
        return None
    table = np.array([[line["heard_weight"] for line in seed[: len(run)]] for seed in lines.seeds])
    starts, means = block_means(table, BLOCKS)
    share, rounds = means.mean(axis=0), [run[k]["round"] for k in starts]
    hover, stairs = "from round %{x}: %{y:.1%} of the weight", {"color": DARK, "shape": "hv"}
    trace = scatter("lines", rounds, plain(share), hover, line=stairs)
    size = -(-len(run) // BLOCKS)
    told = f"{percent(share.min(), 0)} to {percent(share.max(), 0)}, {percent(share.mean(), 0)} on average"
    said = f"Share of the objective's weight that was heard: {told}."
    note = (
        f"Σ aᵢ of the clients heard from{f', mean of {size} rounds each' if size > 1 else ''}; 100 % is everybody."
    )
    rows = [[str(rounds[k]), percent(share[k])] for k in thinned(len(rounds), ROWS)]
    axes = layout("round", "share of the weight", yaxis={"tickformat": ".2~%", "range": [0, 1.03]})
    numbers = Table(["from round", "share of the weight heard"], rows)
    return Plot(f"How much of the objective was heard: {who}", [trace], axes, said, numbers, note=note)


def staleness(who: str, lines: Lines) -> Plot:
    """Rounds since each client was last heard from: the median, nine tenths, the oldest; mean over the seeds."""
    run = min(lines.seeds, key=len)  # seeds that stopped early have fewer rounds
    ages = spread([[line["staleness"] for line in seed[: len(run)]] for seed in lines.seeds]).mean  # (rounds, 3)
    kept = thinned(len(run), POINTS)
    rounds = [run[k]["round"] for k in kept]
    hover = "<br>round %{x}: %{y:.3g} rounds"
    data = [
        scatter("lines", rounds, plain(ages[kept, k]), name + hover, legendgroup=name, line=stroke(look(k), 2))
        for k, name in enumerate(STALENESS)
    ]
    middle, most, oldest = ages.mean(axis=0)
    told = f"median {middle:.1f}, 90 % quantile {most:.1f}, oldest {oldest:.1f} rounds"
    said = f"Staleness over {len(run)} rounds, on average: {told}."
    rows = [[str(run[k]["round"]), *(f"{v:.3g}" for v in ages[k])] for k in thinned(len(run), ROWS)]
    keys = [Key(name, look(k)) for k, name in enumerate(STALENESS)]
    return Plot(f"Staleness: {who}", data, layout("round", "rounds since last heard from"), said,
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
    often = ["–"] * n if share is None else [percent(x) for x in share]
    rows = [
        [called[i].removeprefix("client "), often[i], *(f"{r[i]:.3g}" for r in ratios.values())]
        for i in order[thinned(n, CLIENTS)]
    ]
    table = Table(["client", "heard from", *ratios], rows)
    return Plot("Realised weights", data, axes | {"shapes": [level(1.0)]}, said, table, keys, note)


def recorded(path: Path) -> list[Plot]:
    """Two plots: the share of the rounds, and the weights that the objective asks for and plain averaging gives."""
    try:
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
        rows = [[float(row[name]) for name in COLUMNS] for row in lines]
    except (OSError, ValueError, KeyError, TypeError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} is not what `fedstale inspect` writes: {error!r}") from None
    if not rows:
        raise BadInput(f"{path} has no clients in it")
    values = np.array(rows)
    order = np.argsort(values[:, 1], kind="stable")  # the rarest first
    values, called = values[order], [lines[i].get("name") or f"client {lines[i]['client']}" for i in order]
    kept = thinned(len(values), POINTS)
    told = [[called[k], *(f"{v:.4g}" for v in values[k, 1:])] for k in thinned(len(values), CLIENTS)]
    table = Table([name.replace("_", " ") for name in COLUMNS], told)
    thin = f" {len(kept)} of {len(values)} clients are drawn." if len(kept) < len(values) else ""
    shown, who = values[kept], [called[k] for k in kept]
    return [_shares(shown, who, table, thin), _weights(shown, who, table, thin)]


def _shares(values: Floats, who: Sequence[str], table: Table, thin: str) -> Plot:
    share = values[:, 1]
    pairs = zip(who, values, strict=True)
    told = [f"{escape(who)}: {percent(row[1])} of the rounds, away for {row[3]:.0f} at most" for who, row in pairs]
    trace = {
        "type": "bar", "x": list(range(1, len(values) + 1)), "y": plain(share), "marker": {"color": look(0).colour},
        "text": told, "textposition": "none", "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    said = f"Share of the rounds in which each client was there: {percent(share.min())} to {percent(share.max())}."
    axes = layout("clients, the rarest first", "share of the rounds", yaxis={"tickformat": ".2~%"})
    return Plot("How often each client comes", [trace], axes, said, table, note=thin.strip())


def _weights(values: Floats, who: Sequence[str], table: Table, thin: str) -> Plot:
    data, keys = [], []
    for k, (column, name) in enumerate(((4, "asked for"), (5, "given by plain averaging"))):
        keys.append(Key(name, look(k), line=False))
        data.append(dots(name, look(k), values[:, column], who, "%{text}: %{y:.3g}"))
    gap = 0.5 * float(np.abs(values[:, 4] - values[:, 5]).sum())
    said = f"Weight of each client, asked for and given by plain averaging: {percent(gap)} of it is misplaced."
    return Plot("What plain averaging makes of it", data, layout("clients, the rarest first", "weight"), said,
                table, keys, thin.strip())  # fmt: skip

"""What `fedstale inspect` left of a recorded participation: how often clients come, and what that does to them."""

import csv
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from fedstale.core import BadInput, Floats
from fedstale.lab.runs.statistics import thinned
from fedstale.view.page.plots import CLIENTS, Key, Plot, Table, dots, layout, plain
from fedstale.view.page.series import POINTS
from fedstale.view.plots.palette import look

COLUMNS = ("client", "share", "mixing", "longest_absence", "weight", "plain_weight")


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
    told = [f"{escape(name)}: {row[1]:.1%} of the rounds, away for {row[3]:.0f} at most" for name, row in pairs]
    trace = {
        "type": "bar", "x": list(range(1, len(values) + 1)), "y": plain(share), "marker": {"color": look(0).colour},
        "text": told, "textposition": "none", "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    said = f"Share of the rounds in which each client was there: {share.min():.1%} to {share.max():.1%}."
    axes = layout("clients, the rarest first", "share of the rounds", yaxis={"tickformat": ".2~%"})
    return Plot("How often each client comes", [trace], axes, said, table, note=thin.strip())


def _weights(values: Floats, who: Sequence[str], table: Table, thin: str) -> Plot:
    data, keys = [], []
    for k, (column, name) in enumerate(((4, "asked for"), (5, "given by plain averaging"))):
        keys.append(Key(name, look(k), line=False))
        data.append(dots(name, look(k), values[:, column], who, "%{text}: %{y:.3g}"))
    gap = 0.5 * float(np.abs(values[:, 4] - values[:, 5]).sum())
    said = f"Weight of each client, asked for and given by plain averaging: {gap:.1%} of the weight is misplaced."
    return Plot("What plain averaging makes of it", data, layout("clients, the rarest first", "weight"), said,
                table, keys, thin.strip())  # fmt: skip

"""Of each client: when it took part, how old its updates are, and its weight."""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from fedstale.lab.runs.query import grouped
from fedstale.lab.runs.statistics import block_means, spread, thinned
from fedstale.view.page.plots import CLIENTS, ROWS, Key, Plot, Table, dots, layout, level, plain, stroke
from fedstale.view.page.series import POINTS, Lines, names, per_client, shares, weights
from fedstale.view.plots.palette import DARK, Look, look

BLOCKS = 100  # of rounds, of a share over rounds
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
    return Plot("Realised weights", data, axes | {"shapes": [level(1.0)]}, said, table, keys, note)

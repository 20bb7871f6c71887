"""Which β is best where: a map over how rarely clients come and how much their data differ."""

from collections.abc import Sequence
from typing import Any

from fedstale.lab.runs import metrics
from fedstale.lab.runs.metrics import Metric
from fedstale.lab.runs.query import Group, Setting, flat, grouped
from fedstale.lab.runs.statistics import spread
from fedstale.lab.runs.store import canonical
from fedstale.view.page.plots import BLUES, Plot, Table, layout

ROW, COLUMN = "data.swap.fraction", "participation.p_min"
FREE = (ROW, COLUMN, "rounds", "evaluate_every")  # a grid's horizon follows p_min


def maps(settings: Sequence[Setting]) -> list[Plot]:
    """One for every family of settings that differ in p_min and σ̂² only, with at least two β in each cell."""
    alike = [s._replace(groups=some) for s in settings for some in grouped(s.groups, _other_parts).values()]
    families = grouped(alike, lambda s: _place(s) + _other_parts(s.groups[0])).values()
    found = [_map(cells) for family in families if len(cells := _cells(family)) > 1]
    return [plot for plot in found if plot]


def _place(s: Setting) -> str:
    return canonical({k: v for k, v in flat(s.config).items() if k not in FREE})


def _other_parts(g: Group) -> str:
    """The parts of an algorithm but for its rule and its rates."""
    parts = [g.config.get(key, {}) for key in ("estimator", "channel")]
    return canonical({"": [*parts, g.config.get("server", {}).get("kind")]})


Place = tuple[float, float]  # p_min, share of swapped labels
Cells = dict[Place, tuple[Setting, dict[float, Group]]]  # the setting, and the group of each β
Means = dict[Place, dict[float, float]]  # of each β
Best = dict[Place, float]


def _cells(family: Sequence[Setting]) -> Cells:
    """The settings by p_min and σ̂², where there are at least two β with a result."""
    found: Cells = {}
    for s in family:
        config = flat(s.config)
        groups = {b: g for g in s.groups if g.runs and (b := beta(g)) is not None}
        if COLUMN in config and len(groups) > 1:
            found[float(config[COLUMN]), float(config.get(ROW) or 0.0)] = (s, groups)
    return found


def beta(group: Group) -> float | None:
    """The fixed share of the memory: FedStale's β, 0 for the rule without memory."""
    strategy = group.config.get("strategy", {})
    if strategy.get("kind") == "unbiased":
        return 0.0
    value = strategy.get("beta") if strategy.get("kind") == "fedstale" else None
    return float(value) if isinstance(value, int | float) else None


def _map(cells: Cells) -> Plot | None:
    """The map of one family, by the main metric that all of its runs have."""
    m = next(iter(metrics.shown(*(g.runs[0].result or {} for _, of in cells.values() for g in of.values()))), None)
    if m is None:
        return None
    means = {
        place: {b: spread(g.values(m.name, "last10")).mean for b, g in groups.items()}
        for place, (_, groups) in cells.items()
    }
    best = {place: max(found, key=lambda b: m.score(found[b])) for place, found in means.items()}
    across, up = (sorted({place[k] for place in cells}, reverse=k == 0) for k in (0, 1))
    first, gaps = next(iter(cells.values()))[0], len(cells) < len(across) * len(up)
    told_best = ", ".join(f"at {p:g} and {q:g} β {b:g}" for (p, q), b in best.items())
    said = f"Map of the best β over p_min and the share of swapped labels: {told_best}."
    names = {"type": "category", "showgrid": False}
    axes = layout("p_min (rarer to the right)", "share of swapped labels", xaxis=names, yaxis=names)
    note = (
        f"In each cell the β of the best {m.label}, mean of the last 10 rounds and of the seeds. "
        "Point at a cell for all β." + (" Grey: no runs." if gaps else "")
    )
    data, estimator = first.config["data"], first.groups[0].config.get("estimator", {}).get("kind", "?")
    title = f"Best β: {data['dataset']}, {data['clients']} clients, p {estimator}"
    axes |= {"plot_bgcolor": "#d0d0d0"} if gaps else {}
    trace = _trace(across, up, best, means, m)
    return Plot(title, [trace], axes, said, _table(means, best, m), note=note, rows=len(up) + 3)


def _trace(across: list[float], up: list[float], best: Best, means: Means, m: Metric) -> dict[str, Any]:
    return {
        "type": "heatmap", "x": [f"{p:g}" for p in across], "y": [f"{q:g}" for q in up],
        "z": [[best.get((p, q)) for p in across] for q in up], "zmin": 0, "zmax": 1, "colorscale": BLUES,
        "text": [[_hover(means.get((p, q), {}), m) for p in across] for q in up], "texttemplate": "%{z}",
        "textfont": {"color": "#101010"}, "xgap": 2, "ygap": 2,
        "hovertemplate": "p_min %{x}, swapped %{y}: best β %{z}<br>%{text}<extra></extra>",
        "colorbar": {"title": {"text": "best β"}, "thickness": 12, "tickvals": [0, 0.2, 0.5, 0.8, 1], "len": 1},
    }  # fmt: skip


def _hover(found: dict[float, float], m: Metric) -> str:
    return "<br>".join(f"β = {b:g}: {m.text(v)}" for b, v in sorted(found.items()))


def _table(means: Means, best: Best, m: Metric) -> Table:
    betas, rows = sorted({b for found in means.values() for b in found}), []
    for p, q in sorted(means, key=lambda place: (-place[0], place[1])):
        values = [m.text(means[p, q].get(b)) for b in betas]
        rows.append([f"{p:g}", f"{q:g}", f"{best[p, q]:g}", *values])
    return Table(["p_min", "swapped labels", "best β", *(f"β = {b:g}" for b in betas)], rows)

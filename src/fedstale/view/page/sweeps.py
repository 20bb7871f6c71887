"""Sweeps on the page: which settings of [grid] and [tune] are best, as lines, a map or parallel coordinates.

Of FedStale at several β, a map says which is best where, over how rarely clients come and how their data differ.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from fedstale.lab.runs import metrics
from fedstale.lab.runs.metrics import OBJECTIVE, Metric
from fedstale.lab.runs.query import Group, Setting, apart, flat, grouped, tuning_score, varying
from fedstale.lab.runs.statistics import spread
from fedstale.lab.runs.store import canonical
from fedstale.lab.runs.verdict import compared
from fedstale.view.page.plots import BLUES, KEYS, Key, Plot, Table, layout, plain, stroke, ticks
from fedstale.view.page.tables import MOST, inline, names
from fedstale.view.plots.palette import looks

LABELS = ("label", "engine", "evaluate_every", "rounds")  # no settings that are tried: runs may go on
ROW, COLUMN = "data.swap.fraction", "participation.p_min"  # of a map of β
FREE = (ROW, COLUMN, "rounds", "evaluate_every")  # a grid's horizon follows p_min
Place = tuple[float, float]  # p_min, share of swapped labels
Cells = dict[Place, tuple[Setting, dict[float, Group]]]  # the setting, and the group of each β
Means = dict[Place, dict[float, float]]  # of each β
Best = dict[Place, float]
Drawn = tuple[list[Any], dict[str, Any], list[Key]]  # traces, layout and legend


class Tried(NamedTuple):
    """An algorithm at one setting: where in the grid, what was tuned, and how it ended."""

    algorithm: str
    place: tuple[tuple[str, str], ...]  # in the grid
    settings: dict[str, str]
    value: float  # of the main metric
    std: float
    score: float  # that it is chosen by, the less the better


def sweeps(settings: Sequence[Setting]) -> list[tuple[str, Table, Plot]]:
    """Of each experiment with several settings: its name, the best settings, and a picture of all."""
    found = []
    own = [s for s in settings if not s.config.get("start")]  # a fork is no setting that was tried
    for name, some in grouped(own, lambda s: ", ".join(sorted(names(s)))).items():
        done = [g for s in some for g in s.groups if g.runs]
        shown = compared(done)
        tried = _tried(some, shown[0]) if shown else []
        every = dict.fromkeys(k for x in tried for k in x.settings)
        keys = [key for key in every if len({x.settings.get(key) for x in tried}) > 1]
        if keys:
            found.append((name or "Runs", _best(tried, keys, shown[0]), _plot(name, tried, keys, shown[0])))
    return found


def _tried(some: Sequence[Setting], m: Metric) -> list[Tried]:
    grid = [key for key in varying([s.config for s in some]) if key.rpartition(".")[2] not in LABELS]
    found = []
    for s in some:
        place = {key: inline(flat(s.config).get(key)) for key in grid}
        differ = {label: apart(of) for label, of in grouped(s.groups, lambda g: g.config["label"]).items()}
        for g in (g for g in s.groups if g.runs and g.values(m.name, "last10")):
            of: Mapping[str, Any] = g.runs[0].tuned
            among = {key: flat(g.config).get(key) for key in differ[g.config["label"]]}  # of a grid over rates, say
            own = {key: inline(value) for key, value in of.get("settings", among).items()}
            mean, std, _ = spread(g.values(m.name, "last10"))
            score = tuning_score([r.result for r in g.runs], of.get("by", OBJECTIVE))
            found.append(Tried(g.runs[0].algorithm, tuple(place.items()), place | own, mean, std, score))
    return found


def _best(tried: Sequence[Tried], keys: Sequence[str], m: Metric) -> Table:
    """A row for each algorithm at each point of the grid, the best first: the settings that are best there."""
    places = grouped(tried, lambda x: (x.place, x.algorithm)).values()
    orders = {key: _order(tried, key) for key in keys}
    best = sorted(
        [(min(of, key=lambda x: x.score), len(of)) for of in places],
        key=lambda of: ([orders[k].index(v) for k, v in of[0].place if k in orders], -m.score(of[0].value)),
    )
    head = ["algorithm", *keys, f"{m.label}, mean of the last 10", "of settings"]
    return Table(head, [[*_row(x, keys, m), str(n)] for x, n in best[:MOST]])


def _row(x: Tried, keys: Sequence[str], m: Metric) -> list[str]:
    return [x.algorithm, *(x.settings.get(k, "–") for k in keys), m.text(x.value, x.std or None)]


def _where(x: Tried, keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {x.settings.get(key, '–')}" for key in keys)


def _plot(name: str, tried: Sequence[Tried], keys: Sequence[str], m: Metric) -> Plot:
    draw = {1: _lines, 2: _map}.get(len(keys), _parallel)
    data, axes, shown = draw(tried, keys, m)
    best = max(tried, key=lambda x: m.score(x.value))
    top = f"the best is {m.text(best.value)} of {best.algorithm} at {_where(best, keys)}"
    said = f"{m.title} at {len(tried)} settings; {top}."
    table = Table(["algorithm", *keys, m.label], [_row(x, keys, m) for x in tried[:MOST]])
    return Plot(f"{m.title} by {' and '.join(keys[:3])}: {name}", data, axes, said, table, shown, said)


def _order(tried: Sequence[Tried], key: str) -> list[str]:
    """The values of a setting, numbers by size."""
    values = {x.settings[key] for x in tried if key in x.settings}
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def _lines(tried: Sequence[Tried], keys: Sequence[str], m: Metric) -> Drawn:
    """One setting: a line for each algorithm, level where it has no such setting."""
    by = dict(list(grouped(tried, lambda x: x.algorithm).items())[:KEYS])
    drawn, order, data = looks(list(by)), _order(tried, keys[0]), []
    for label, of in by.items():
        values = {x.settings[keys[0]]: x.value for x in of if keys[0] in x.settings}
        same = next((x.value for x in of if keys[0] not in x.settings), None)
        xs = order if same is not None else [v for v in order if v in values]
        data.append({
            "type": "scatter", "mode": "lines+markers", "x": xs, "y": plain([values.get(x, same) for x in xs]),
            "legendgroup": label, "name": label, "line": stroke(drawn[label], 2.2),
            "marker": {"symbol": drawn[label].symbol, "size": 9, "color": drawn[label].colour},
        })  # fmt: skip
    axes = layout(keys[0], m.label, xaxis={"type": "category"}, yaxis=ticks(m))
    return data, axes, [Key(k, drawn[k]) for k in by]


def _map(tried: Sequence[Tried], keys: Sequence[str], m: Metric) -> Drawn:
    """Two settings: the best algorithm of each pair, coloured by its value."""
    across, up = (_order(tried, key) for key in keys)
    cells = grouped(tried, lambda x: tuple(x.settings.get(k) for k in keys))
    best = {at: max(of, key=lambda x: m.score(x.value)) for at, of in cells.items()}
    found = [[best.get((x, y)) for x in across] for y in up]
    data = [{
        "type": "heatmap", "x": across, "y": up,
        "z": [plain([b.value if b else float("nan") for b in row]) for row in found],
        "text": [[f"{m.text(b.value)}<br>{escape(b.algorithm)}" if b else "" for b in row] for row in found],
        "texttemplate": "%{text}", "textfont": {"color": "#101010"}, "colorscale": BLUES,
        "reversescale": not m.higher_is_better, "xgap": 2, "ygap": 2, "colorbar": {"thickness": 12} | ticks(m),
        "hovertemplate": f"{keys[0]} %{{x}}, {keys[1]} %{{y}}<br>%{{text}}<extra></extra>",
    }]  # fmt: skip
    words = {"type": "category", "showgrid": False}
    return data, layout(*keys, xaxis=words, yaxis=words), []


def _parallel(tried: Sequence[Tried], keys: Sequence[str], m: Metric) -> Drawn:
    """Three settings or more: an upright axis for each and for the metric, and a line for everything tried."""
    labels = list(dict.fromkeys(x.algorithm for x in tried))[:KEYS]
    drawn, low, high = looks(labels), min(x.value for x in tried), max(x.value for x in tried)
    orders = {key: [*["–"] * any(key not in x.settings for x in tried), *_order(tried, key)] for key in keys}
    data, best = [], max(m.score(x.value) for x in tried)
    last = [key.rpartition(".")[2] for key in keys]
    called = dict(zip(keys, last if len({*last}) == len(keys) else keys, strict=True))  # short, for narrow screens
    for x in [x for x in tried if x.algorithm in drawn][:MOST]:
        places = [_share(orders[k].index(x.settings.get(k, "–")), 0, len(orders[k]) - 1) for k in keys]
        top = m.score(x.value) == best
        data.append({
            "type": "scatter", "mode": "lines+markers", "x": [*called.values(), m.label],
            "legendgroup": x.algorithm, "y": plain([*places, _share(x.value, low, high)]),
            "line": stroke(drawn[x.algorithm], 4 if top else 1.2),
            "marker": {"color": drawn[x.algorithm].colour, "size": 7}, "hovertemplate": "%{text}<extra></extra>",
            "text": [escape(f"{x.algorithm}, {_where(x, keys)}: {m.text(x.value)}")] * (len(keys) + 1),
        })  # fmt: skip
    ends = {m.label: [m.text(low), m.text(high)]}
    told = [
        {"x": called.get(key, key), "y": _share(k, 0, len(order) - 1), "text": escape(text), "showarrow": False,
         "bgcolor": "#fff", **({"yshift": 24 * k - 12} if key in ends else {"xanchor": "left", "xshift": 8})}
        for key, order in (orders | ends).items() for k, text in enumerate(order)
    ]  # fmt: skip
    wide = {"type": "category", "range": [-0.5, len(keys) + 0.5]}  # room for the first and the last name
    axes = layout("", "", xaxis=wide, yaxis={"visible": False, "range": [-0.12, 1.12]})
    return data, axes | {"annotations": told}, [Key(k, drawn[k]) for k in labels]


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def maps(settings: Sequence[Setting]) -> list[Plot]:
    """One for every family of settings that differ in p_min and σ̂² only, with at least two β in each cell."""
    alike = [s._replace(groups=some) for s in settings for some in grouped(s.groups, _other_parts).values()]
    families = grouped(alike, lambda s: _other_settings(s) + _other_parts(s.groups[0])).values()
    found = [_beta_map(cells) for family in families if len(cells := _beta_cells(family)) > 1]
    return [plot for plot in found if plot]


def _other_settings(s: Setting) -> str:
    return canonical({k: v for k, v in flat(s.config).items() if k not in FREE})


def _other_parts(g: Group) -> str:
    """The parts of an algorithm but for its rule and its rates."""
    parts = [g.config.get(key, {}) for key in ("estimator", "channel")]
    return canonical({"": [*parts, g.config.get("server", {}).get("kind")]})


def _beta_cells(family: Sequence[Setting]) -> Cells:
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


def _beta_map(cells: Cells) -> Plot | None:
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
    every = {
        place: "<br>".join(f"β = {b:g}: {m.text(v)}" for b, v in sorted(found.items()))
        for place, found in means.items()
    }
    trace = {
        "type": "heatmap", "x": [f"{p:g}" for p in across], "y": [f"{q:g}" for q in up],
        "z": [[best.get((p, q)) for p in across] for q in up], "zmin": 0, "zmax": 1, "colorscale": BLUES,
        "text": [[every.get((p, q), "") for p in across] for q in up], "texttemplate": "%{z}",
        "textfont": {"color": "#101010"}, "xgap": 2, "ygap": 2,
        "hovertemplate": "p_min %{x}, swapped %{y}: best β %{z}<br>%{text}<extra></extra>",
        "colorbar": {"title": {"text": "best β"}, "thickness": 12, "tickvals": [0, 0.2, 0.5, 0.8, 1], "len": 1},
    }  # fmt: skip
    return Plot(title, [trace], axes, said, _beta_table(means, best, m), note=note, rows=len(up) + 3)


def _beta_table(means: Means, best: Best, m: Metric) -> Table:
    betas, rows = sorted({b for found in means.values() for b in found}), []
    for p, q in sorted(means, key=lambda place: (-place[0], place[1])):
        values = [m.text(means[p, q].get(b)) for b in betas]
        rows.append([f"{p:g}", f"{q:g}", f"{best[p, q]:g}", *values])
    return Table(["p_min", "swapped labels", "best β", *(f"β = {b:g}" for b in betas)], rows)

"""The tables of the page: how it ended, what the settings are, and how to repeat it."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedstale.report.plots import Table
from fedstale.report.series import NAMES, spread
from fedstale.runs.query import Group, Setting, flat, varying

MOST = 200  # rows of the overview


def main(groups: Sequence[Group]) -> str | None:
    """The number that the algorithms are compared by."""
    known = [g.runs[0].result or {} for g in groups if g.runs]
    return next(
        (name for name in ("accuracy", "distance", "objective") if known and all(name in r for r in known)), None
    )


def better(name: str, values: Sequence[float]) -> float:
    return max(values) if name == "accuracy" else min(values)


def final(groups: Sequence[Group]) -> tuple[Table, int | None]:
    """A row for each algorithm, mean ± standard deviation over its seeds; and the row of the best mean."""
    name, done = main(groups), [g for g in groups if g.runs]
    if name is None:
        return Table(["algorithm"], []), None
    columns = [(name, "last10"), (name, "final"), (name, "best")]
    if name != "objective" and all("objective" in (g.runs[0].result or {}) for g in done):
        columns.append(("objective", "last10"))
    titles = {"final": "last round", "last10": "mean of the last 10", "best": "best round"}
    head = ["algorithm", *(f"{NAMES[n]}, {titles[which]}" for n, which in columns), "seeds"]
    rows = [[g.label, *(spread(g.values(*c), c[0]) for c in columns), str(len(g.runs))] for g in done]
    if any(g.note for g in done):
        head, rows = [*head, "rate"], [[*row, g.note] for row, g in zip(rows, done, strict=True)]
    means = [float(np.mean(g.values(name, "last10"))) for g in done]
    return Table(head, rows), means.index(better(name, means)) if len(means) > 1 else None


def titles(settings: Sequence[Setting]) -> list[str]:
    """Of each setting `digits, 24 clients, two-groups p_min=0.05, 400 rounds`, and what tells it from namesakes."""
    plain = [_title(s.config) for s in settings]
    found = []
    for s, first in zip(settings, plain, strict=True):
        namesakes = [t.config for t, other in zip(settings, plain, strict=True) if other == first]
        values, keys = flat(s.config), varying(namesakes)
        found.append(", ".join([first, *(f"{k.removeprefix('data.')} {inline(values.get(k))}" for k in keys[:3])]))
    return found


def _title(config: dict[str, Any]) -> str:
    data, who = config.get("data", {}), config.get("participation", {})
    scalars = {k: v for k, v in who.items() if k not in ("kind", "seed", "draws") and type(v) in (int, float)}
    told_who = " ".join([str(who.get("kind", "?")), *(f"{k}={v:g}" for k, v in scalars.items())])
    return (
        f"{data.get('dataset', '?')}, {data.get('clients', '?')} clients, {told_who}, {config.get('rounds')} rounds"
    )


def overview(settings: Sequence[Setting], names: Sequence[str]) -> Table:
    """A row for each setting: what it is and who came out best."""
    return Table(["setting", "algorithms", "best", "its accuracy"], [
        [f"{k}. {name}", str(len(s.groups)), *_winner(s)]
        for k, (s, name) in enumerate(zip(settings[:MOST], names[:MOST], strict=True), 1)
    ])  # fmt: skip


def _winner(s: Setting) -> list[str]:
    name, done = main(s.groups), [g for g in s.groups if g.runs]
    if name is None:
        return ["none is finished", "–"]
    means = [float(np.mean(g.values(name, "last10"))) for g in done]
    best = done[means.index(better(name, means))]
    what = "" if name == "accuracy" else f" ({NAMES[name]})"
    return [best.label, spread(best.values(name, "last10"), name) + what]


def configuration(setting: Setting) -> Table:
    """Every key: what all share, then what the algorithms have of their own."""
    own = [
        {k: v for k, v in g.config.items() if k not in (*setting.config, "seed", "label")} for g in setting.groups
    ]
    rows = [["all", key, inline(value)] for key, value in flat(setting.config).items()]
    differ = varying(own)
    same = flat(own[0]) if own else {}
    rows += [["all", key, inline(value)] for key, value in same.items() if key not in differ]
    for g, config in zip(setting.groups, own, strict=True):
        rows += [[g.label, key, inline(value)] for key, value in flat(config).items() if key in differ]
    return Table(["of", "key", "value"], rows)


def inline(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "…"


def origins(setting: Setting) -> tuple[list[str], list[str]]:
    """The commands that made the runs, and on what."""
    found = [
        r.folder.environment()
        for g in setting.groups
        for r in g.runs
        if (r.folder.path / "environment.json").exists()
    ]
    commands = dict.fromkeys(str(e["command"]) for e in found if e.get("command"))
    return list(commands), list(dict.fromkeys(map(_machine, found)))


def _machine(e: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in (e.get("packages") or {}).items())
    git = e.get("git") or {}
    commit = (
        f", git {git['commit'][:10]}{' with changes' if git.get('changed') else ''}" if git.get("commit") else ""
    )
    return f"Python {e.get('python', '?')}, {packages}; {e.get('machine', '?')}{commit}"

"""The tables of the page: how it ended, what the settings are, and how to repeat it."""

import json
from collections.abc import Sequence
from typing import Any

from fedstale.report.plots import Table
from fedstale.runs import metrics
from fedstale.runs.metrics import WINDOWS, Metric
from fedstale.runs.query import Group, Setting, flat, varying
from fedstale.runs.statistics import spread

MOST = 200  # rows of the overview


def final(groups: Sequence[Group]) -> tuple[Table, int | None]:
    """A row for each algorithm, mean ± standard deviation over its seeds; and the row of the best mean."""
    done = [g for g in groups if g.runs]
    found = _shown(done)
    columns = [(m, which) for m in found[:1] for which in ("last10", "final", "best")]
    columns += [(m, "last10") for m in found[1:]]
    head = ["algorithm", *(f"{m.label}, {WINDOWS[which]}" for m, which in columns), "seeds"]
    rows = [[g.label, *(_spread(g, *c) for c in columns), str(len(g.runs))] for g in done] if found else []
    if any(g.note for g in done):
        head, rows = [*head, "rate"], [[*row, g.note] for row, g in zip(rows, done, strict=False)]
    return Table(head, rows), _best(done, found[0]) if found and len(done) > 1 else None


def _shown(done: Sequence[Group]) -> list[Metric]:
    """The metrics that all of them have; the first is the one that they are compared by."""
    return metrics.shown(*(g.runs[0].result or {} for g in done))


def _best(done: Sequence[Group], m: Metric) -> int:
    means = [spread(g.values(m.name, "last10")).mean for g in done]
    return means.index(m.best(means))


def _spread(group: Group, m: Metric, which: str) -> str:
    mean, std, seeds = spread(group.values(m.name, which))
    return m.text(mean, std if seeds > 1 else None)


def titles(settings: Sequence[Setting]) -> list[str]:
    """Of each setting `digits, 24 clients, two-groups p_min=0.05, 400 rounds`, and what tells it from namesakes."""
    plain = [_title(s.config) for s in settings]
    found = []
    for s, first in zip(settings, plain, strict=True):
        namesakes = [t.config for t, other in zip(settings, plain, strict=True) if other == first]
        values, keys = flat(s.config), varying(namesakes)
        found.append(", ".join([first, *(_difference(k, values.get(k)) for k in keys[:3])]))
    return found


def _difference(key: str, value: Any) -> str:
    """A key and its value; of a checksum of data or code the beginning."""
    if key == "data.content":
        return f"data {str(value)[:6]}"
    if key.startswith("sources."):
        return f"code of {key.rpartition(':')[2]} {str(value)[:6]}"
    return f"{key.removeprefix('data.')} {inline(value)}"


def _title(config: dict[str, Any]) -> str:
    data, who = config.get("data", {}), config.get("participation", {})
    scalars = {k: v for k, v in who.items() if k not in ("kind", "seed", "draws") and type(v) in (int, float)}
    kind = " ".join([str(who.get("kind", "?")), *(f"{k}={v:g}" for k, v in scalars.items())])
    return f"{data.get('dataset', '?')}, {data.get('clients', '?')} clients, {kind}, {config.get('rounds')} rounds"


def overview(settings: Sequence[Setting], names: Sequence[str]) -> Table:
    """A row for each setting: what it is and who came out best."""
    return Table(["setting", "algorithms", "best", "its value"], [
        [f"{k}. {name}", str(len(s.groups)), *_winner(s)]
        for k, (s, name) in enumerate(zip(settings[:MOST], names[:MOST], strict=True), 1)
    ])  # fmt: skip


def _winner(s: Setting) -> list[str]:
    done = [g for g in s.groups if g.runs]
    found = _shown(done)
    if not found:
        return ["none is finished", "–"]
    best = done[_best(done, found[0])]
    return [best.label, f"{_spread(best, found[0], 'last10')} ({found[0].label})"]


def configuration(setting: Setting) -> Table:
    """Every key: what all share, then what the algorithms have of their own."""
    shared = (*setting.config, "seed", "label")
    own = [{k: v for k, v in g.config.items() if k not in shared} for g in setting.groups]
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
    found = [r.folder.environment() for g in setting.groups for r in g.runs]
    commands = dict.fromkeys(str(e["command"]) for e in found if e.get("command"))
    return list(commands), list(dict.fromkeys(map(_machine, found)))


def _machine(e: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in (e.get("packages") or {}).items())
    git = e.get("git") or {}
    changed = " with changes" * bool(git.get("changed"))
    commit = f", git {git['commit'][:10]}{changed}" if git.get("commit") else ""
    return f"Python {e.get('python', '?')}, {packages}; {e.get('machine', '?')}{commit}"

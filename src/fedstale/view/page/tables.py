"""The tables of the page: how it ended, what the settings are, and how to repeat it."""

import json
import re
from collections.abc import Sequence
from typing import Any

from fedstale.lab.runs.metrics import WINDOWS, Metric, percent
from fedstale.lab.runs.query import Group, Setting, flat, grouped, varying
from fedstale.lab.runs.statistics import spread
from fedstale.lab.runs.verdict import Target, compared, leading, reached, target, took
from fedstale.view.page.plots import Table
from fedstale.view.page.series import Lines

MOST = 200  # rows of the overview
FINAL = "How it ended: mean ± standard deviation over the seeds. Bold: the best of a column; ≈: may be as good"
Cell = tuple[int, int]  # row and column of a table


def final(groups: Sequence[Group], lines: Sequence[Lines] = ()) -> tuple[Table, set[Cell]]:
    """A row for each algorithm, mean ± standard deviation over its seeds; and the cells of those that are best.

    Algorithms whose `lines` of metrics are given have the rounds, megabytes and hours to the target as well.

    In a column the best mean is marked, and every mean that paired tests over the seeds cannot tell from it has
    a sign; none, if that is all of them.
    """
    done = [g for g in groups if g.runs]
    found = compared(done)
    columns = [(m, which) for m in found[:1] for which in ("last10", "final", "best")]
    columns += [(m, "last10") for m in found[1:]]
    head = ["algorithm", *(f"{m.label}, {WINDOWS[which]}" for m, which in columns), "seeds"]
    rows = [[g.label, *(_spread(g, *c) for c in columns), str(len(g.runs))] for g in done] if found else []
    best = set[Cell]()
    for k, c in enumerate(columns, 1):
        near = leading(done, *c)
        if 0 < len(near) < len(done):
            best.add((near[0], k))
            for row in near[1:]:
                rows[row][k] += " ≈"
    if rows and (t := aim(lines)):
        costs = {x.group.label: reached(x.seeds, t) for x in lines}
        told = ["rounds", "megabytes", *["hours"] * all(c.hours for c in costs.values())]
        head += [f"{what} to {t.text if k == 0 else 'it'}" for k, what in enumerate(told)]
        whens = [costs[g.label]._asdict() if g.label in costs else {} for g in done]
        rows = [[*row, *(w[x].text if w else "–" for x in told)] for row, w in zip(rows, whens, strict=True)]
    if rows and all("clock" in (r.result or {}) for g in done for r in g.runs):
        head += ["hours", "megabytes", "places idle", "trainings lost"]
        head += ["clients never heard, for whom no rule is unbiased"]
        asked = any("stopped" in (r.result or {}) for g in done for r in g.runs)  # `>`: did not reach the target
        rows = [[*row, *_time(g, asked)] for row, g in zip(rows, done, strict=True)]
    if any(g.note for g in done):
        head, rows = [*head, "rate"], [[*row, g.note] for row, g in zip(rows, done, strict=False)]
    return Table(head, rows), best


def aim(lines: Sequence[Lines]) -> Target | None:
    """The target of these runs, or where plain averaging ended."""
    return target(lines[0].group.config, {x.group.label: x.seeds for x in lines}) if lines else None


def _time(g: Group, asked: bool) -> list[str]:
    """Hours and megabytes of the runs of an algorithm, idle places, lost work, and how many were never heard."""
    w = took([r.result or {} for r in g.runs])
    ends = [f"{'>' * (asked and w['stopped'] < len(g.runs))}{w[key]:.3g}" for key in ("hours", "megabytes")]
    return [*ends, percent(w["idle"], 0), f"{w['lost_work']:.0f}", str(w["never_heard"])]


def _best(done: Sequence[Group], m: Metric) -> int:
    means = [spread(g.values(m.name, "last10")).mean for g in done]
    return means.index(m.best(means))


def _spread(group: Group, m: Metric, which: str) -> str:
    mean, std, seeds = spread(group.values(m.name, which))
    return m.text(mean, std if seeds > 1 else None)


def heading(settings: Sequence[Setting]) -> str:
    """The name of the experiment that all runs are of, as their commands have it; else what any page is called."""
    found = {name for s in settings for name in names(s)}
    return f"Experiment {found.pop()}" if len(found) == 1 and len(settings) == 1 else "Runs of fedstale"


def names(setting: Setting) -> set[str]:
    """The names of the experiments that made the runs of a setting, as their commands have it."""
    name = r"run (?:\S*/)?([\w.-]+?)(?:\.toml)?(?: |$)|name='([^']+)'"
    return {m[1] or m[2] for command in origins(setting)[0] if (m := re.search(name, command))}


def titles(settings: Sequence[Setting]) -> list[str]:
    """Of each setting `digits, 24 clients, two-groups p_min=0.05, 400 rounds`, and what tells it from namesakes."""
    return titles_of([s.config for s in settings])


def titles_of(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The same of what settings share."""
    plain = [_title(config) for config in configs]
    differ = {
        first: varying([configs[k] for k in of])[:3]
        for first, of in grouped(range(len(plain)), plain.__getitem__).items()
    }
    return [
        ", ".join(filter(None, [first, *(_difference(key, flat(config).get(key)) for key in differ[first])]))
        for first, config in zip(plain, configs, strict=True)
    ]


def _difference(key: str, value: Any) -> str:
    """A key and its value; of a checksum of data or code the beginning."""
    if key == "data.content":
        return f"data {str(value)[:6]}"
    if key.startswith("sources."):
        return f"code of {key.rpartition(':')[2]} {str(value)[:6]}"
    if key.startswith("start."):
        told = "round" if key == "start.round" else "from"
        return f"{told} {value}" if value is not None else "from the beginning" * (told == "from")
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
    found = compared(done)
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
    """A setting's value in at most 120 characters."""
    text = "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "…"


def origins(setting: Setting) -> tuple[list[str], list[str]]:
    """The commands that made the runs, and on what."""
    found = [r.folder.environment() for g in setting.groups for r in g.all]
    commands = dict.fromkeys(str(e["command"]) for e in found if e.get("command"))
    return list(commands), list(dict.fromkeys(map(_machine, found)))


def _machine(e: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in (e.get("packages") or {}).items())
    git = e.get("git") or {}
    changed = " with changes" * bool(git.get("changed"))
    commit = f", git {git['commit'][:10]}{changed}" if git.get("commit") else ""
    return f"Python {e.get('python', '?')}, {packages}; {e.get('machine', '?')}{commit}"

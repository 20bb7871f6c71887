"""The tables of the page: how it ended, what the settings are, and how to repeat it."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedstale.lab.runs import metrics
from fedstale.lab.runs.metrics import WINDOWS, Metric
from fedstale.lab.runs.query import Group, Setting, flat, grouped, varying
from fedstale.lab.runs.statistics import paired_test, spread
from fedstale.view.page.plots import Table

MOST = 200  # rows of the overview
FINAL = "How it ended: mean ± standard deviation over the seeds. Bold: the best of a column and what noise may hide"
Cell = tuple[int, int]  # row and column of a table


def final(groups: Sequence[Group]) -> tuple[Table, set[Cell]]:
    """A row for each algorithm, mean ± standard deviation over its seeds; and the cells of those that are best.

    In a column the best mean is marked, and with it every mean that paired tests over the seeds cannot tell from
    it; none, if that is all of them.
    """
    done = [g for g in groups if g.runs]
    found = _shown(done)
    columns = [(m, which) for m in found[:1] for which in ("last10", "final", "best")]
    columns += [(m, "last10") for m in found[1:]]
    head = ["algorithm", *(f"{m.label}, {WINDOWS[which]}" for m, which in columns), "seeds"]
    rows = [[g.label, *(_spread(g, *c) for c in columns), str(len(g.runs))] for g in done] if found else []
    if rows and all("clock" in (r.result or {}) for g in done for r in g.runs):
        head += ["hours", "megabytes", "clients never heard, for whom no rule is unbiased"]
        rows = [[*row, *_time(g)] for row, g in zip(rows, done, strict=True)]
    if any(g.note for g in done):
        head, rows = [*head, "rate"], [[*row, g.note] for row, g in zip(rows, done, strict=False)]
    best = {(row, k) for k, c in enumerate(columns, 1) for row in _leading(done, *c)}
    return Table(head, rows), best


def _time(g: Group) -> list[str]:
    """Hours and megabytes of the runs of an algorithm, and how many clients were never heard."""
    results = [r.result or {} for r in g.runs]
    hours = spread([r["clock"]["seconds"] / 3600 for r in results]).mean
    sent = spread([(r["bytes_up"] + r["bytes_down"]) / 1e6 for r in results]).mean
    return [f"{hours:.3g}", f"{sent:.3g}", str(max(r["clock"]["never_heard"] for r in results))]


def _shown(done: Sequence[Group]) -> list[Metric]:
    """The metrics that all of them have; the first is the one that they are compared by."""
    return metrics.shown(*(g.runs[0].result or {} for g in done))


def _leading(done: Sequence[Group], m: Metric, which: str) -> list[int]:
    """The rows of the best mean and of those within its noise; none if no row is behind it beyond noise."""
    means = [spread(g.values(m.name, which)).mean for g in done]
    if not means or not all(map(math.isfinite, means)):
        return []
    best = done[means.index(m.best(means))]
    near = [k for k, g in enumerate(done) if g is best or not _behind(g, best, m, which)]
    return near if len(near) < len(done) else []


def _behind(g: Group, best: Group, m: Metric, which: str) -> bool:
    """Whether a paired test over the common seeds finds the group worse than the best one."""
    ours, theirs = (
        {r.seed: m.score(float(r.result[m.name][which])) for r in x.runs if r.result} for x in (g, best)
    )
    common = sorted(ours.keys() & theirs.keys())
    return len(common) > 1 and paired_test(np.array([ours[s] - theirs[s] for s in common])) < 0


def _best(done: Sequence[Group], m: Metric) -> int:
    means = [spread(g.values(m.name, "last10")).mean for g in done]
    return means.index(m.best(means))


def _spread(group: Group, m: Metric, which: str) -> str:
    mean, std, seeds = spread(group.values(m.name, which))
    return m.text(mean, std if seeds > 1 else None)


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
        ", ".join([first, *(_difference(key, flat(config).get(key)) for key in differ[first])])
        for first, config in zip(plain, configs, strict=True)
    ]


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
    found = [r.folder.environment() for g in setting.groups for r in g.all]
    commands = dict.fromkeys(str(e["command"]) for e in found if e.get("command"))
    return list(commands), list(dict.fromkeys(map(_machine, found)))


def _machine(e: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in (e.get("packages") or {}).items())
    git = e.get("git") or {}
    changed = " with changes" * bool(git.get("changed"))
    commit = f", git {git['commit'][:10]}{changed}" if git.get("commit") else ""
    return f"Python {e.get('python', '?')}, {packages}; {e.get('machine', '?')}{commit}"

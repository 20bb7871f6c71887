"""The tables of experiments and of runs: searched, filtered, sorted, and a page at a time."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstale.core import BadInput, known, require
from fedstale.lab.runs.metrics import metric
from fedstale.lab.runs.query import grouped
from fedstale.lab.runs.status import duration
from fedstale.view.live import federation
from fedstale.view.live.index import Index, Row
from fedstale.view.page import tables

PAGE = 50  # rows of a page
STATES = ("running", "finished", "interrupted", "diverged", "damaged")
RUN_KEYS = ("label", "seed", "state", "progress", "speed", "left", "value", "started", "name")
EXPERIMENT_KEYS = ("title", "algorithms", "runs", "state", "progress", "left", "best", "started")


class Lists:
    """The rows of both tables; titles are made anew when there are other settings."""

    def __init__(self, index: Index) -> None:
        self.index, self._titled = index, -1
        self._titles: dict[str, str] = {}

    def titles(self) -> dict[str, str]:
        """The title of each setting, by its key."""
        settings = dict(self.index.settings)
        if len(settings) != self._titled:
            self._titles = dict(zip(settings, tables.titles_of(list(settings.values())), strict=True))
            self._titled = len(settings)
        return self._titles

    def runs(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """A page of runs."""
        titles = self.titles()
        rows = [_run(row, titles.get(row.key, "")) for row in self.index.all()]
        return self._page(rows, asked, RUN_KEYS, "started")

    def experiments(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """A page of experiments."""
        titles = self.titles()
        rows = [_federation(key, folder) for key, folder in self.index.federations.items()]
        rows += [_experiment(titles.get(key, key), key, of) for key, of in self.index.experiments().items()]
        return self._page(rows, asked, EXPERIMENT_KEYS, "started")

    def _page(
        self, rows: Sequence[dict[str, Any]], asked: Mapping[str, str], keys: Sequence[str], sort: str
    ) -> dict[str, Any]:
        words = asked.get("q", "").lower().split()
        found = [row for row in rows if all(word in row["search"] for word in words)]
        counts = Counter(row["state"] for row in found)
        if state := asked.get("state", ""):
            found = [row for row in found if row["state"] == known(state, dict.fromkeys(STATES), "state")]
        by = known(asked.get("sort") or sort, dict.fromkeys(keys), "sort")
        down = asked.get("down", "1" if by == "started" else "") == "1"
        found.sort(key=lambda row: _order(row[by]), reverse=down)
        page, pages = asked.get("page", "1"), max(1, math.ceil(len(found) / PAGE))
        require(page.isdecimal(), f"page must be a whole number, got {page[:20]!r}")
        at = min(max(int(page), 1), pages)
        kept = [_shown(row) for row in found[(at - 1) * PAGE : at * PAGE]]
        return {
            "rows": kept, "found": len(found), "all": len(rows), "page": at, "pages": pages, "sort": by,
            "down": down, "counts": {s: counts[s] for s in STATES if counts[s]}, "whole": self.index.whole,
        }  # fmt: skip


def _order(value: Any) -> tuple[bool, bool, Any]:
    """Numbers before texts, and nothing before both, so that all can be compared."""
    return (value is not None, isinstance(value, str), value.lower() if isinstance(value, str) else value or 0)


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the page shows it: numbers as text, and without what it is searched by."""
    value = metric(row["metric"]).text(row["value"]) if row["metric"] else "–"
    speed = f"{row['speed']:.3g}" if row.get("speed") else "–"
    texts = {"speed": speed, "left": duration(row["left"]), "value": value, "started": row["started"].lstrip("~")}
    return {key: x for key, x in row.items() if key not in ("folder", "search")} | texts


def _run(row: Row, title: str) -> dict[str, Any]:
    return row._asdict() | {
        "name": row.name, "store": str(row.folder.path.parent),
        "progress": row.round / row.rounds if row.rounds else 0.0,
        "search": f"{row.label} {row.name} {row.state} {title}".lower(),
    }  # fmt: skip


def _experiment(title: str, key: str, rows: Sequence[Row]) -> dict[str, Any]:
    states = Counter(row.state for row in rows)
    state = next(s for s in ("running", "interrupted", "diverged", "finished") if states[s])
    total, done = sum(row.rounds for row in rows), sum(row.round for row in rows if row.state != "finished")
    done += sum(row.rounds for row in rows if row.state == "finished")
    algorithms = grouped(rows, lambda row: row.label)
    return _best(algorithms) | {
        "key": key, "title": title, "algorithms": len(algorithms), "runs": len(rows), "state": state,
        "states": {s: states[s] for s in STATES if states[s]}, "done": done, "total": total,
        "progress": done / total if total else 0.0, "started": max(row.started for row in rows),
        "left": max((row.left for row in rows if row.left is not None), default=None),
        "search": f"{title} {' '.join(algorithms)} {state}".lower(),
    }  # fmt: skip


def _federation(key: str, folder: Path) -> dict[str, Any]:
    """A federation as a row among the experiments, the first; one that cannot be read says so when it is opened."""
    try:
        found = federation.now(folder)
    except BadInput:
        found = federation.Now(folder.name, 0, 0, "damaged", [], 0)
    title = f"Federation {found.name}, {len(found.clients)} clients"
    return {
        "key": key, "title": title, "algorithms": 1, "runs": 1, "state": found.state, "states": {found.state: 1},
        "done": found.round, "total": found.rounds, "progress": found.round / max(found.rounds, 1), "left": None,
        "best": "", "metric": "", "value": None, "started": "~", "search": title.lower(),
    }  # fmt: skip


def _best(algorithms: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """The algorithm with the best mean of the main metric in the last 10 rounds, the metric, and that mean."""
    name = next((row.metric for rows in algorithms.values() for row in rows if row.metric), "")
    means = {}
    for label, rows in algorithms.items():
        values = [row.value for row in rows if row.metric == name and row.value is not None]
        if values:
            means[label] = sum(values) / len(values)
    best = max(means, key=lambda label: metric(name).score(means[label])) if means else ""
    return {"best": best, "metric": name if best else "", "value": means.get(best)}

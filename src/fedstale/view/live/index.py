"""The runs of one or more stores, as rows that are kept up to date while other processes compute."""

import hashlib
import math
import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedstale.lab.runs import metrics, query, status
from fedstale.lab.runs.metrics import Metric
from fedstale.lab.runs.store import RunFolder, canonical

SLICE = 500  # finished runs that are looked at again in one scan; nobody changes them but --again


class Row(NamedTuple):
    """What the page's tables say about a run."""

    folder: RunFolder
    key: str  # of its setting; empty if it has none
    label: str
    seed: int | None
    state: str
    round: int
    rounds: int
    speed: float | None  # rounds per second
    left: float | None  # seconds
    metric: str
    value: float | None  # of the main metric: mean of the last 10 rounds of a finished run
    started: str
    warmup: str  # the run that this one starts from
    note: str = ""  # what is wrong with it
    origin: str = ""  # where it began, if not with round 1

    @property
    def name(self) -> str:
        return self.folder.path.name

    def texts(self) -> list[str]:
        """Algorithm, seed, state, round, rounds per second, time left, and main metric, in words."""
        speed = f"{self.speed:.3g}" if self.speed else "–"
        value = metrics.metric(self.metric).text(self.value) if self.metric else "–"
        where = f"{self.round} of {self.rounds}"
        return [self.label, str(self.seed), self.state, where, speed, status.duration(self.left), value]


class Index:
    """The rows of all runs in some folders; `scan` brings them up to date and `version` counts the changes."""

    def __init__(self, stores: Sequence[Path], federations: Sequence[Path] = ()) -> None:
        self.stores, self.version, self.whole = list(stores), 0, False
        self.federations = {f"federation-{k}": folder for k, folder in enumerate(federations, 1)}
        self.rows: dict[Path, Row] = {}
        self.settings: dict[str, dict[str, Any]] = {}  # key → what its runs share
        self._signs: dict[Path, tuple[Any, ...]] = {}
        self._places: dict[Path, int] = {}  # store → when its list of runs was last changed
        self._turn, self._lock = 0, threading.Lock()

    def scan(self) -> bool:
        """Look for runs that came, went or changed; returns whether there were any."""
        with self._lock:
            before = self.version
            for store in self.stores:
                self._list(store)
            for path in self._due():
                self._refresh(path)
            for folder in self.federations.values():
                self._look(folder)
            self.whole = True
            return self.version > before

    def _list(self, store: Path) -> None:
        """Add new runs and forget deleted ones, if the store's folder has changed."""
        try:
            stamp = store.stat().st_mtime_ns
            if self._places.get(store) == stamp:
                return
            with os.scandir(store) as entries:
                found = {Path(e.path) for e in entries if e.is_dir() and not e.name.startswith(".")}
        except OSError:
            stamp, found = -1, set()
        for path in [p for p in self.rows if p.parent == store and p not in found]:
            self._forget(path)
        for path in sorted(found - self.rows.keys()):
            self._refresh(path)
        self._places[store] = stamp

    def _due(self) -> list[Path]:
        """Unfinished runs, and some of the finished ones in turn."""
        done = [path for path, row in self.rows.items() if row.state == "finished"]
        self._turn = (self._turn + SLICE) % max(len(done), 1) if len(done) > SLICE else 0
        return [p for p, row in self.rows.items() if row.state != "finished"] + done[self._turn :][:SLICE]

    def _refresh(self, path: Path) -> None:
        sign = _sign(path)
        if sign is None:
            self._forget(path)
        elif sign != self._signs.get(path):
            self.rows[path] = self._row(RunFolder(path))
            self._signs[path] = sign
            self.version += 1

    def _look(self, folder: Path) -> None:
        """Notice a new round of a federation, and that its server came or went."""
        stamps = [p.stat().st_mtime_ns if p.exists() else 0 for p in (folder / "status.json", folder / "state")]
        sign = (*stamps, RunFolder(folder / "state").busy)
        if sign != self._signs.get(folder):
            self._signs[folder] = sign
            self.version += 1

    def _forget(self, path: Path) -> None:
        if self.rows.pop(path, None):
            self._signs.pop(path, None)
            self.version += 1

    def _row(self, folder: RunFolder) -> Row:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = query.load(folder)
        told = "; ".join(str(w.message) for w in caught)
        if run is None:
            return Row(folder, "", folder.path.name, None, "damaged", 0, 0, None, None, "", None, "", "", told)
        shared = query.setting_of(run)
        key = hashlib.sha256(canonical(shared).encode()).hexdigest()[:12]
        self.settings.setdefault(key, shared)
        now, result = status.read(folder), run.result or {}
        state, label = status.state(folder), query.label_in_words(run.config["label"])
        m: Metric | None = next(iter(metrics.shown(result, main=run.config.get("main"))), None)
        value = float(result[m.name]["last10"]) if m else None
        going = now if now and state == "running" else None
        done = result.get("rounds") or (now.round if now else folder.rounds_recorded())
        return Row(
            folder, key, label, run.seed, state, int(done), int(run.config["rounds"]),
            going.speed if going else result.get("rounds_per_second"), going.seconds_left if going else None,
            m.name if m else "", value if value is not None and math.isfinite(value) else None,
            str(_environment(folder).get("started", "")), str(run.config.get("warmup", "")), told,
            query.origin(run.config, _environment(folder)),
        )  # fmt: skip

    def experiments(self) -> dict[str, list[Row]]:
        """The rows by setting, without warm-ups, which are no runs of their own."""
        rows = self.all()
        warm = {(r.folder.path.parent, r.warmup) for r in rows if r.warmup}
        others = (r for r in rows if r.key and (r.folder.path.parent, r.name) not in warm)
        return query.grouped(others, lambda r: r.key)

    def all(self) -> list[Row]:
        """The rows of all runs, as many as are known yet."""
        return list(self.rows.values())


def _environment(folder: RunFolder) -> dict[str, Any]:
    try:
        return folder.environment()
    except ValueError:  # BadInput: where it was computed is not worth a complaint
        return {}


def _sign(path: Path) -> tuple[Any, ...] | None:
    """What changes whenever the row of a run does; None if there is no run."""
    stamps: list[int] = []
    for name in ("config.json", "result.json", status.FILE, "diverged.json"):
        try:
            stamps.append((path / name).stat().st_mtime_ns)
        except OSError:
            stamps.append(0)
    if not any(stamps[:2]):
        return None
    return (*stamps, not stamps[1] and RunFolder(path).busy)

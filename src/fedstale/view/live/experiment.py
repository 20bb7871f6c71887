"""One experiment of the page: the section of `fedstale report` on a setting, also while its runs are computed."""

import csv
import io
from collections import OrderedDict
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedstale.core import known, require
from fedstale.lab.arena import records
from fedstale.lab.runs import pairing, query
from fedstale.lab.runs.pairing import Pair, Side
from fedstale.lab.runs.query import Group, Run, Setting
from fedstale.lab.runs.status import Tail
from fedstale.lab.runs.store import RunFolder
from fedstale.view.live import axes, federation
from fedstale.view.live.index import Index, Row
from fedstale.view.page import arena, markup, page, sweeps, tables
from fedstale.view.page.plots import KEYS, Plot, Table
from fedstale.view.page.series import Lines

LINES = 100_000  # of metrics that are kept in memory, of the runs that were looked at last
RUNS = 2000  # that a map is made of
MAPS, ARENA = "maps", "arena"  # the keys of the pages of maps, and of leaderboards
BEST = "The best settings of each algorithm, at each point of the grid"
NO_SWEEP = "No experiment here has several settings: `[grid]` and `[tune]` in a file make some."
SEEDS = 400  # rows of the table of seeds


class Experiments:
    """Builds experiments from the store; what was read of a growing file is kept for the next time."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.tails: OrderedDict[Path, Tail] = OrderedDict()
        self.boards: dict[Path, tuple[int, page.Part]] = {}  # of each contest, and when its record was written

    def setting(self, key: str) -> tuple[Setting, list[Row]]:
        """The setting of this key, with the chosen rates of what was tuned, and the rows of its runs."""
        rows = self.index.experiments().get(key, [])
        require(bool(rows), "this experiment is not in the store any more")
        found = query.settings(row.folder for row in rows)
        require(bool(found), "no run of this experiment can be read")
        return query.tuned(found[0]), rows

    def plots(self, key: str, view: axes.View) -> tuple[page.Part, list[Row], Setting]:
        """The section of the experiment, as the report has it, with curves over what `view` asks for."""
        if folder := self.index.federations.get(key):
            tail = self.tails.setdefault(folder, Tail(RunFolder(folder / "state")))
            return federation.part(folder, tail), [], Setting({}, [])
        if key in (MAPS, ARENA):
            return self._maps() if key == MAPS else self._arena(), [], Setting({}, [])
        setting, rows = self.setting(key)
        running = {row.folder.path for row in rows if row.state == "running"}
        lines = [x for g in setting.groups[:KEYS] if (x := self._lines(g))]
        smooth = [axes.smoothed(x, view) for x in lines]
        part = page.setting_part(setting, tables.titles([setting])[0], smooth, running)
        plots = [axes.over(plot, lines, view)._replace(over={}) for plot in part.plots]
        return part._replace(plots=plots), rows, setting

    def _maps(self) -> page.Part:
        """The best β of each setting of a sweep so far, and what was found of the claims of a figure."""
        rows = [row for of in self.index.experiments().values() for row in of]
        few = f"These are too many runs for a map: at most {RUNS} are read, and there are {len(rows)}."
        require(len(rows) <= RUNS, few)
        settings = query.settings(row.folder for row in rows)
        found, plots = sweeps.sweeps(settings), sweeps.maps([query.tuned(s) for s in settings])
        best = "".join(f"<h2>{escape(n)}</h2>{markup.table(t, BEST)}" for n, t, _ in found)
        texts = [file for store in self.index.stores for file in sorted(store.parent.glob("*-claims.txt"))]
        told = [(escape(f.stem), escape(f.read_text(errors="replace"))) for f in texts]
        claims = "".join(f"<h2>{name}</h2><pre>{text}</pre>" for name, text in told)
        note = "" if plots or found else page.paragraph(f"{NO_SWEEP} {page.LEAST}")
        return page.Part("Sweeps and figures", best + note, [p for *_, p in found] + plots, claims)

    def _arena(self) -> page.Part:
        """One section with the leaderboards of all contests; each is read again when its record changes."""
        found = contests(self.index.stores)
        require(bool(found), "there is no finished contest in these folders: `fedstale arena run` holds one")
        for folder in found:
            stamp = (folder / records.RECORD).stat().st_mtime_ns
            if self.boards.get(folder, (0,))[0] != stamp:
                self.boards[folder] = stamp, arena.board(records.read(folder))
        parts = {folder: self.boards[folder][1] for folder in found}
        whole = [f"<h2>{escape(p.title)}</h2>{p.above}" for p in parts.values()]
        cells = "<p>Every cell with its curves: {}</p>".format
        below = [p.below + cells(escape(str(folder / "page.html"))) for folder, p in parts.items()]
        return page.Part("Arena", "".join(whole), [x for p in parts.values() for x in p.plots], "".join(below))

    def show(self, key: str, view: axes.View) -> dict[str, Any]:
        """All that the page shows of an experiment."""
        part, rows, setting = self.plots(key, view)
        shown = {row.folder.path for row in rows} | {self.index.federations.get(key)}
        damage = [tail.damage for path, tail in self.tails.items() if tail.damage and path in shown]
        damage += [row.folder.damage for row in rows if row.state == "finished" and row.folder.damage]
        return {
            "title": part.title, "states": sorted({row.state for row in rows}),
            "running": not rows or any(row.state == "running" for row in rows), "seeds": self._runs(key, rows),
            "above": part.above, "figures": drawn(part.plots), "below": part.below,
            "notes": [*dict.fromkeys([row.note for row in rows if row.note] + damage)],
            "labels": [g.label for g in setting.groups if g.runs],
        }  # fmt: skip

    def run(self, row: Row, view: axes.View) -> dict[str, Any]:
        """All that the page shows of one run: its curves, and its settings beside those of its neighbours."""
        run = query.load(row.folder)
        require(run is not None and not row.folder.damage, row.folder.damage or row.note)
        assert run
        lines = self._tail(run)
        shown = [Lines(Group(row.label, [run], []), [lines])] if lines else []
        groups = [Group(row.label, [run] if run.result else [], [] if run.result else [run])]
        setting = Setting(query.setting_of(run), groups)
        part = page.setting_part(setting, f"{row.label}, seed {row.seed}", [axes.smoothed(x, view) for x in shown],
                                 {row.folder.path} if row.state == "running" else ())  # fmt: skip
        others = [r.folder for r in self.index.experiments().get(row.key, []) if r.folder.path != row.folder.path]
        came, result = query.origin(run.config, row.folder.environment()), run.result or {}
        told = [came, f"stopped: {result['stopped']}" if "stopped" in result else "", *result.get("warnings", [])]
        above = "".join(f"<p>{escape(text)}</p>" for text in told if text)
        where = f"{row.state}, round {row.round} of {row.rounds}"
        settings = markup.table(settings_table(run, others), "The settings; first what differs from its neighbours")
        return {
            "title": part.title, "states": [row.state], "running": row.state == "running", "seeds": "",
            "above": f"<p>{escape(row.name)}: {where}</p>{above}{part.above}",
            "figures": drawn([axes.over(plot, shown, view) for plot in part.plots]),
            "below": f"<h3>Settings</h3>{settings}{part.below}", "notes": [row.note] if row.note else [],
            "labels": [], "experiment": row.key,
        }  # fmt: skip

    def _runs(self, key: str, rows: Sequence[Row]) -> str:
        """The table of all runs; of a federation that of its clients."""
        if folder := self.index.federations.get(key):
            return markup.table(federation.clients_table(federation.now(folder)), "Every client of the roster")
        return markup.table(seed_table(rows), "Every run of this experiment") if rows else ""

    def compare(self, key: str, a: str, b: str) -> dict[str, Any]:
        """The paired test of two algorithms, as `fedstale compare` prints it, as HTML."""
        setting, _ = self.setting(key)
        groups = {g.label: g for g in setting.groups if g.runs}
        left, right = (Side(setting, groups[known(label, groups, "the algorithm")]) for label in (a, b))
        found = pairing.result(Pair(left, right))
        rows = [pairing.texts(row) for row in found["metrics"]]
        seeds = len(found["common_seeds"])
        caption = f"A: {a}, B: {b}; {seeds} seeds in common, 90 % interval of the difference, one-sided test at 5 %"
        return {"html": markup.table(Table(["", "A", "B", "B − A", "verdict"], rows), caption)}

    def numbers(self, key: str, figure: int, view: axes.View) -> str:
        """The numbers of one figure as CSV."""
        plots = self.plots(key, view)[0].plots
        require(0 <= figure < len(plots), f"there is no figure {figure} in this experiment")
        return csv_of(plots[figure])

    def _lines(self, group: Group) -> Lines | None:
        """The metrics of the finished seeds, or where there is none of those that have come about as far."""
        read = {run.seed: (run, lines) for run in group.runs or group.broken if (lines := self._tail(run))}
        far = max((lines[-1]["round"] for _, lines in read.values()), default=0)
        near: list[tuple[Run, list[query.Line]]] = [x for x in read.values() if 2 * x[1][-1]["round"] >= far]
        return Lines(group._replace(runs=[r for r, _ in near], broken=[]), [x for _, x in near]) if near else None

    def _tail(self, run: Run) -> list[query.Line]:
        path = run.folder.path
        tail = self.tails.setdefault(path, Tail(RunFolder(path)))
        self.tails.move_to_end(path)
        lines = tail.update()
        while len(self.tails) > 1 and sum(len(t.lines) for t in self.tails.values()) > LINES:
            self.tails.popitem(last=False)
        return list(lines)


def contests(stores: Sequence[Path]) -> list[Path]:
    """The folders of finished contests that these stores belong to."""
    return [store.parent for store in stores if (store.parent / records.RECORD).exists()]


def drawn(plots: Sequence[Plot]) -> dict[str, dict[str, Any]]:
    """The plots as the page's script takes them."""
    return {
        f"f{k}": {
            "html": markup.figure(plot, f"f{k}"),
            "data": plot.data,
            "layout": plot.layout,
            "curves": any(trace.get("mode") == "lines+markers" and "legendgroup" in trace for trace in plot.data),
        }
        for k, plot in enumerate(plots)
    }


def settings_table(run: Run, others: Sequence[RunFolder]) -> Table:
    """Every setting of a run, beside the other values that runs of the same experiment have."""
    own, known = query.flat(run.config), [query.flat(r.config) for f in others[:SEEDS] if (r := query.load(f))]
    rows = []
    for key in dict.fromkeys([*own, *(k for of in known for k in of)]):
        mine = tables.inline(own[key]) if key in own else "–"
        values = dict.fromkeys(tables.inline(of[key]) if key in of else "–" for of in known)
        rows.append([key, mine, ", ".join([v for v in values if v != mine][:6])])
    rows.sort(key=lambda row: not row[2])
    return Table(["setting", "this run", "others of the experiment"], rows)


def seed_table(rows: Sequence[Row]) -> Table:
    """A row for each run: where it is, how fast, and what it has reached."""
    order = sorted(rows, key=lambda r: (r.label, r.seed or 0))[:SEEDS]
    forks = any(r.origin for r in order)
    head = ["algorithm", "seed", "state", "round", "rounds/s", "time left", "main metric", *["began"] * forks]
    return Table(head, [[*r.texts(), *[r.origin or "with round 1"] * forks] for r in order])


def csv_of(plot: Plot) -> str:
    """The traces of a plot in long form: name, x, y (of a map also the value), and the text that is shown."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    x, y = (plot.layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis"))
    writer.writerow(["series", x, y or "name", "value", "shown"])
    for trace in plot.data:
        if trace.get("hoverinfo") == "skip":  # a band: its width is in the text of the curve
            continue
        name, xs, ys, text = (trace.get(key) or [] for key in ("legendgroup", "x", "y", "text"))
        name = name or trace.get("name", "")
        if "z" in trace:
            table = [(k, j, z) for k, row in enumerate(trace["z"]) for j, z in enumerate(row)]
            writer.writerows([name, xs[j], ys[k], z, ""] for k, j, z in table)
        else:
            for k in range(len(xs)):
                writer.writerow([name, xs[k], ys[k] if ys else "", "", text[k] if k < len(text) else ""])
    return out.getvalue()

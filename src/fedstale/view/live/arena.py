"""The leaderboard of a contest on the page, from the record that `fedstale arena` writes beside its store."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedstale.core import require
from fedstale.lab.arena import table
from fedstale.lab.arena.page import PAIR_WORDS, about, pair_rows
from fedstale.lab.arena.records import RECORD, Contest, read
from fedstale.lab.arena.scores import Standing, standings
from fedstale.view.page import markup, page
from fedstale.view.page.plots import Plot, Table, layout, plain
from fedstale.view.page.served import wrapped
from fedstale.view.plots.palette import look

KEY = "arena"  # of the page


def contests(stores: Sequence[Path]) -> list[Path]:
    """The folders of finished contests that these stores belong to."""
    return [store.parent for store in stores if (store.parent / RECORD).exists()]


class Arena:
    """The leaderboards of some stores; a contest is read again when its record changes."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[int, page.Part]] = {}

    def part(self, stores: Sequence[Path]) -> page.Part:
        """One section with all contests."""
        found = contests(stores)
        require(bool(found), "there is no finished contest in these folders: `fedstale arena run` holds one")
        parts = [self._part(folder) for folder in found]
        whole = [f"<h2>{escape(p.title)}</h2>{p.above}" for p in parts]
        plots = [plot for p in parts for plot in p.plots]
        return page.Part("Arena", "".join(whole), plots, "".join(p.below for p in parts))

    def _part(self, folder: Path) -> page.Part:
        stamp = (folder / RECORD).stat().st_mtime_ns
        if folder not in self._read or self._read[folder][0] != stamp:
            self._read[folder] = stamp, _part(read(folder), folder)
        return self._read[folder][1]


def _part(contest: Contest, folder: Path) -> page.Part:
    found, title = standings(contest.cells, contest.full), str(contest.about["title"] or contest.about["suite"])
    board = markup.table(Table(table.head(contest.cells), table.rows(found)), table.WORDS, {(0, 1)})
    if contest.timed:
        timed = Table(table.head(contest.timed), table.rows(standings(contest.timed, contest.full)))
        board += markup.table(timed, table.CLOCK_WORDS, {(0, 1)})
    pairs, strong = pair_rows(contest.cells)
    told = Table(["", *(row[0] for row in pairs)], pairs)
    below = f"<h2>Pairs of rules: {escape(title)}</h2>{markup.table(told, PAIR_WORDS, strong)}"
    below += f"<p>Every cell with its curves: {escape(str(folder / 'page.html'))}</p>"
    return page.Part(title, f"<p>{escape(about(contest))}</p>{board}", [_missing(found, title)], below)


def _missing(found: Sequence[Standing], title: str) -> Plot:
    """The progress that every rule misses, with its interval, the best at the top."""
    back = found[::-1]
    mean, low, high = ([100 * s.missing[k] for s in back] for k in range(3))
    bars = {
        "type": "data", "symmetric": False, "color": look(0).colour,
        "array": plain([h - x for h, x in zip(high, mean, strict=True)]),
        "arrayminus": plain([x - least for x, least in zip(mean, low, strict=True)]),
    }  # fmt: skip
    trace = {
        "type": "scatter", "mode": "markers", "x": plain(mean), "y": [wrapped(s.rule) for s in back],
        "error_x": bars, "marker": {"color": look(0).colour, "size": 9},
        "hovertemplate": "%{y}: misses %{x:.2f} %<extra></extra>",
    }  # fmt: skip
    told = ", ".join(f"{s.rule} {100 * s.missing.mean:.1f} %" for s in found)
    said = f"Missing progress of {len(found)} rules, from the best: {told}."
    rows = [[s.rule, *(f"{100 * x:.2f}" for x in s.missing)] for s in found]
    axes = layout("missing progress (%)", "", yaxis={"type": "category", "ticks": ""})
    note = "0 is the best rule of every cell; the bar is the 90 % interval."
    numbers = Table(["rule", "missing progress (%)", "from", "to"], rows)
    return Plot(f"Who leads: {title}", [trace], axes, said, numbers, note=note, rows=len(found))

"""A contest of the arena on the page: the leaderboard with its filters, the pairs of rules, and every cell."""

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from fedstale.lab.arena import table
from fedstale.lab.arena.records import ACCURACY, WORST, Cell, Contest, Entry
from fedstale.lab.arena.scores import Standing, missing, standings, subsets
from fedstale.lab.runs.metrics import OBJECTIVE, metric, percent
from fedstale.lab.runs.statistics import Spread
from fedstale.view.page import markup
from fedstale.view.page.page import Part, document
from fedstale.view.page.plots import Plot, Table, interval, layout, mean_curves, plain, scatter
from fedstale.view.page.series import Series
from fedstale.view.page.served import wrapped
from fedstale.view.plots.palette import look, looks

FILTERS = {"task": "task", "participation": "participation", "belief": "p"}  # field of a cell → its name here
CELL_HEAD = [
    "rule", "rate", "objective", "deviation", "missing progress", "over time", "above full",
    "accuracy", "worst tenth", "own point", "tuning runs", "notes",
]  # fmt: skip


def page(contest: Contest) -> str:
    """The document; it depends on the store alone."""
    whole = board(contest)
    timed = [_clock(contest)] if contest.timed else []
    cells = [_cell(contest, c) for c in (*contest.cells, *contest.timed)]
    return document(whole.title, [whole._replace(title="Leaderboard"), *timed, *cells])


def board(contest: Contest) -> Part:
    """The leaderboard, over all cells or those that are chosen, who leads, and the pairs of rules."""
    title = str(contest.about["title"] or contest.about["suite"])
    boards = "".join(
        f'<div data-board="{escape(key)}"{" hidden" * (key != "||")}>{_table(contest, cells)}</div>'
        for key, cells in subsets(contest.cells).items()
    )
    none = "<p data-board hidden>No cell has this combination.</p>"
    about, words = (f'<p class="note">{escape(text)}</p>' for text in (table.about(contest), table.WORDS))
    above = f"{about}<div>{_filters(contest.cells)}{boards}{none}</div>{words}"
    pairs, strong = table.pair_rows(contest.cells)
    below = markup.table(Table(["", *(row[0] for row in pairs)], pairs), table.PAIR_WORDS, strong)
    return Part(title, above, [_missing(standings(contest.cells, contest.full))], f"<h3>Pairs of rules</h3>{below}")


def _clock(contest: Contest) -> Part:
    """The cells with a clock, whose rules are others and have the same hours, not the same rounds."""
    about = f'<p class="note">{escape(table.CLOCK_WORDS)}</p>'
    return Part("With a clock", about + _table(contest, contest.timed), [], "")


def _table(contest: Contest, cells: Sequence[Cell]) -> str:
    """The standings over these cells, with the number of the first in bold."""
    found = Table(table.head(cells), table.rows(standings(cells, contest.full)))
    return markup.table(found, f"{len(cells)} cell{'s' * (len(cells) > 1)}", {(0, 1)})


def _filters(cells: Sequence[Cell]) -> str:
    found = ""
    for key, name in FILTERS.items():
        values = dict.fromkeys(getattr(c, key) for c in cells)
        options = "".join(f"<option>{escape(value)}</option>" for value in values)
        found += f'<label>{name} <select><option value="">all</option>{options}</select></label> '
    return f'<p class="filters">{found}</p>'


def _missing(found: Sequence[Standing]) -> Plot:
    """The progress that every rule misses, with its interval, the best at the top."""
    back = found[::-1]
    mean, low, high = ([100 * s.missing[k] for s in back] for k in range(3))
    rules, mark = [wrapped(s.rule) for s in back], {"color": look(0).colour, "size": 9}
    hover, bars = "%{y}: misses %{x:.2f} %", interval(mean, low, high)
    trace = scatter("markers", plain(mean), rules, hover, error_x=bars, marker=mark)
    told = ", ".join(f"{s.rule} {percent(s.missing.mean)}" for s in found)
    said = f"Missing progress of {len(found)} rules, from the best: {told}."
    rows = [[s.rule, *(f"{100 * x:.2f}" for x in s.missing)] for s in found]
    axes = layout("missing progress (%)", "", yaxis={"type": "category", "ticks": ""})
    note = "0 is the best rule of every cell; the bar is the 90 % interval."
    numbers = Table(["rule", "missing progress (%)", "from", "to"], rows)
    return Plot("Who leads", [trace], axes, said, numbers, note=note, rows=len(found))


def _cell(contest: Contest, cell: Cell) -> Part:
    """Every rule in one cell, and its curves."""
    ordered = sorted(cell.entries.items(), key=lambda of: of[1].scores[OBJECTIVE].mean())
    full, labels = contest.full.get(cell.task), list(cell.entries)
    lost = dict(zip(labels, missing([cell], labels).mean(axis=(1, 2)), strict=True))
    lines = [_entry(label, e, full, lost[label]) for label, e in ordered]
    lines += [_entry("full participation", full, full, math.nan)] if full else []
    best, long = ordered[0][1].scores[OBJECTIVE].mean(), f"{cell.end:g} {cell.unit}s"
    told = f"{cell.clients} clients, {cell.dimension} parameters, {long}, hash {cell.hash}"
    first = f"{ordered[0][0]} leads with {best:.4g}, from {cell.start:.4g}"
    plots = [plot for name in (OBJECTIVE, ACCURACY) if (plot := _curves(cell, name))]
    return Part(cell.name, markup.table(Table(CELL_HEAD, lines), f"{first}. {told}."), plots, "")


def _curves(cell: Cell, name: str) -> Plot | None:
    """A metric of all rules; objectives up to the first one of any rule, or what a diverging rule came down to."""
    curves = {label: e.curves[name] for label, e in cell.entries.items() if name in e.curves}
    found = [
        Series(label, c.rounds, Spread(np.array(c.values), np.zeros(len(c.values)), 1), len(c.rounds))
        for label, c in curves.items()
    ]
    if not found:
        return None
    plot = mean_curves(found, metric(name), looks(list(cell.entries)), cell.unit)
    axis = plot.layout["yaxis"]
    if name == OBJECTIVE and axis.get("type") == "log":
        ends = (
            min(min(c.values) for c in curves.values()),
            max(max(min(c.values), c.values[0]) for c in curves.values()),
        )
        axis["range"] = [math.log10(end) for end in ends]
    return plot._replace(note="Means over the seeds.")


def _entry(label: str, e: Entry, full: Entry | None, lost: float) -> list[str]:
    objective, seeds = e.scores[OBJECTIVE], len(e.scores[OBJECTIVE])
    mean, finite = float(objective.mean()), e.diverged == 0
    deviation = float(objective.std(ddof=1)) if finite and seeds > 1 else math.nan
    notes = [f"diverged in {e.diverged} of {seeds} runs"] * (not finite) + ["rate at the end of its list"] * e.edge
    names = (f"{OBJECTIVE}_over_time", f"own_{OBJECTIVE}", ACCURACY, WORST)
    over, own, accuracy, worst = (e.scores[n].mean() if n in e.scores else math.nan for n in names)
    above = mean / float(full.scores[OBJECTIVE].mean()) - 1 if full else math.nan
    return [
        label, f"{e.rate:.3g}" + (f" × {e.server:g}" if e.server != 1 else ""), _digits(mean), _digits(deviation),
        percent(lost), _digits(over), table.signed(above),
        percent(accuracy), percent(worst), _digits(own), str(e.tuning_runs), "; ".join(notes),
    ]  # fmt: skip


def _digits(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "–"

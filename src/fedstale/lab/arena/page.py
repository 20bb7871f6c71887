"""The page of a contest: one file with the leaderboard, its filters, the pairs, and every cell with its curves."""

import json
import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

from fedstale.lab.arena import table
from fedstale.lab.arena.curves import pictures
from fedstale.lab.arena.records import ACCURACY, WORST, Cell, Contest, Entry
from fedstale.lab.arena.scores import CHANCE, missing, pairs, standings, subsets
from fedstale.lab.runs.metrics import OBJECTIVE

PAIR_WORDS = (
    "How much more of the best rule's progress the rule in the row misses than the rule in the column, on average "
    "over all cells. Bold: beyond chance, by a t-test over the seeds with Holm's correction for all pairs."
)
CELL_HEAD = (
    "rule", "rate", "objective", "deviation", "missing progress", "over time", "above full",
    "accuracy", "worst tenth", "own point", "tuning runs", "notes",
)  # fmt: skip


class Line(NamedTuple):
    """A rule of the leaderboard."""

    leading: bool  # it is the first
    cells: list[str]


class Board(NamedTuple):
    """The leaderboard over some of the cells."""

    size: str  # how many cells
    lines: list[Line]

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return {"count": self.size, "rows": [line._asdict() for line in self.lines]}


def page(contest: Contest) -> str:
    """The document; it depends on the store alone."""
    boards = {key: _board(contest, cells) for key, cells in subsets(contest.cells).items()}
    filled = {
        "TITLE": escape(str(contest.about["title"] or contest.about["suite"])), "ABOUT": escape(about(contest)),
        "FILTERS": _filters(contest.cells), "COUNT": escape(boards["||"].size),
        "HEAD": _row(table.head(contest.cells), "th"), "TIMED": _timed(contest),
        "ROWS": _body(boards["||"].lines), "WORDS": escape(table.WORDS),
        "PAIR_WORDS": escape(PAIR_WORDS), "PAIRS": _pairs(contest.cells),
        "CELLS": "".join(_cell(contest, c) for c in contest.cells), "TEXTS": json.dumps(table.TEXTS),
        "BOARDS": _json({key: board.plain() for key, board in boards.items()}),
    }  # fmt: skip
    pieces = (files("fedstale.lab.arena") / "arena.html").read_text().split("@@")  # every second piece is a name
    return "".join(filled[piece] if k % 2 else piece for k, piece in enumerate(pieces))


def _timed(contest: Contest) -> str:
    """The cells with a clock, whose rules are others and have the same hours, not the same rounds."""
    if not contest.timed:
        return ""
    board = _board(contest, contest.timed)
    cells = "".join(_cell(contest, c) for c in contest.timed)
    return (
        f"<h2 id='clock'>With a clock</h2><p class='note'>{escape(table.CLOCK_WORDS)}</p>"
        f"<p class='note'>{escape(board.size)}</p><div class='scroll'><table><thead>"
        f"{_row(table.head(contest.timed), 'th')}</thead><tbody>{_body(board.lines)}</tbody></table></div>{cells}"
    )


def about(contest: Contest) -> str:
    """What was computed, in a few sentences."""
    a, cells = contest.about, contest.cells
    runs = {e.tuning_runs for c in cells for e in c.entries.values()}
    told = " or ".join(map(str, sorted(runs)))
    return (
        f"Suite {a['suite']} at size {a['size']}, hash {a['hash']}: {len(cells[0].entries)} rules in {len(cells)} "
        f"cells with {len(a['seeds'])} evaluation seeds. In every cell the rates of the clients and of the server "
        f"were chosen for every rule by the same number of tuning runs on other seeds ({told}). All rules "
        "have the same data, participation, local steps and batches, and are evaluated "
        "at the parameters of the server."
    )


def _board(contest: Contest, cells: Sequence[Cell]) -> Board:
    found = standings(cells, contest.full)
    lines = [Line(k == 0, row) for k, row in enumerate(table.rows(found))]
    return Board(f"{len(cells)} cell{'s' * (len(cells) > 1)}", lines)


def _filters(cells: Sequence[Cell]) -> str:
    told = {"task": "task", "participation": "participation", "belief": "p"}
    found = ""
    for key, name in told.items():
        values = dict.fromkeys(c._asdict()[key] for c in cells)
        options = "".join(f"<option>{escape(value)}</option>" for value in values)
        found += f'<label>{name} <select><option value="">all</option>{options}</select></label>'
    return found


def _row(cells: Sequence[str], tag: str = "td") -> str:
    inner = "".join(f"<{tag}{' class=text' * (k in table.TEXTS)}>{escape(c)}</{tag}>" for k, c in enumerate(cells))
    return f"<tr>{inner}</tr>"


def _body(lines: Sequence[Line]) -> str:
    return "".join(
        _row(line.cells).replace("<tr>", '<tr class="leading">' if line.leading else "<tr>") for line in lines
    )


def _json(value: object) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def pair_rows(cells: Sequence[Cell]) -> tuple[list[list[str]], set[tuple[int, int]]]:
    """A row for each rule: its name, how much more it misses than every rule; and the cells beyond chance."""
    rules, above, strong = list(cells[0].entries), {}, set[tuple[int, int]]()
    for p in pairs(cells):
        a, b = rules.index(p.first), rules.index(p.second)
        above[a, b], above[b, a] = p.more, -p.more
        strong |= {(a, b + 1), (b, a + 1)} if p.p < CHANCE else set()
    each = range(len(rules))
    return [[rules[a], *(table.percent(above.get((a, b), math.nan)) for b in each)] for a in each], strong


def _pairs(cells: Sequence[Cell]) -> str:
    found, strong = pair_rows(cells)
    lines = ""
    for k, row in enumerate(found):
        texts = [f"<b>{t}</b>" if (k, j) in strong else escape(t) for j, t in enumerate(row)]
        lines += f"<tr>{''.join(f'<td>{t}</td>' for t in texts)}</tr>"
    head = "".join(f"<th>{escape(row[0])}</th>" for row in found)
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(contest: Contest, cell: Cell) -> str:
    best = min(e.scores[OBJECTIVE].mean() for e in cell.entries.values())
    ordered = sorted(cell.entries.items(), key=lambda of: of[1].scores[OBJECTIVE].mean())
    full, labels = contest.full.get(cell.task), list(cell.entries)
    lost = dict(zip(labels, missing([cell], labels).mean(axis=(1, 2)), strict=True))
    lines = [_entry(label, e, full, lost[label]) for label, e in ordered]
    lines += [_entry("full participation", full, full, math.nan)] if full else []
    rows = "".join("<tr>" + "".join(f"<td>{escape(t)}</td>" for t in texts) + "</tr>" for texts in lines)
    head = "".join(f"<th>{h}</th>" for h in CELL_HEAD)
    long = f"{cell.rounds} rounds" if cell.hours is None else f"{cell.hours:g} hours"
    told = f"{cell.clients} clients, {cell.dimension} parameters, {long}, hash {cell.hash}"
    first = f"{ordered[0][0]} leads with {best:.4g}, from {cell.start:.4g}"
    return (
        f"<details><summary>{escape(cell.name)}: {escape(first)}</summary><p class='note'>{escape(told)}</p>"
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{pictures(cell)}</details>"
    )


def _entry(label: str, e: Entry, full: Entry | None, lost: float) -> list[str]:
    objective, seeds = e.scores[OBJECTIVE], len(e.scores[OBJECTIVE])
    mean, finite = float(objective.mean()), e.diverged == 0
    deviation = float(objective.std(ddof=1)) if finite and seeds > 1 else math.nan
    notes = [f"diverged in {e.diverged} of {seeds} runs"] * (not finite) + ["rate at the end of its list"] * e.edge
    over, own = (
        e.scores[n].mean() if n in e.scores else math.nan for n in (f"{OBJECTIVE}_over_time", f"own_{OBJECTIVE}")
    )
    accuracy, worst = (e.scores[n].mean() if n in e.scores else math.nan for n in (ACCURACY, WORST))
    above = mean / float(full.scores[OBJECTIVE].mean()) - 1 if full else math.nan
    return [
        label, f"{e.rate:.3g}" + (f" × {e.server:g}" if e.server != 1 else ""), _digits(mean), _digits(deviation),
        table.share(lost), _digits(over), table.percent(above),
        table.share(accuracy), table.share(worst), _digits(own), str(e.tuning_runs), "; ".join(notes),
    ]  # fmt: skip


def _digits(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "–"

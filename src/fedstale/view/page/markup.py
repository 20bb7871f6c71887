"""Pieces of HTML; every text that comes from a run is escaped here."""

import json
from collections.abc import Collection
from html import escape
from typing import Any

from fedstale.view.page.plots import Key, Plot, Table
from fedstale.view.plots.palette import Look

SHAPES = {
    "circle": '<circle cx="16" cy="7" r="4"/>',
    "square": '<rect x="12" y="3" width="8" height="8"/>',
    "diamond": '<path d="M16 2l5 5-5 5-5-5z"/>',
    "triangle-up": '<path d="M16 2l5 9H11z"/>',
    "cross": '<path d="M14.5 2h3v3.5H21v3h-3.5V12h-3V8.5H11v-3h3.5z"/>',
    "x": '<path d="M12 4.5L13.5 3 16 5.5 18.5 3 20 4.5 17.5 7 20 9.5 18.5 11 16 8.5 13.5 11 12 9.5 14.5 7z"/>',
    "star": '<path d="M16 1.5l1.600 3.700 4 .3-3 2.700 1 4L16 10l-3.600 2.200 1-4-3-2.700 4-.3z"/>',
    "triangle-down": '<path d="M16 12l5-9H11z"/>',
    "pentagon": '<path d="M16 2l5 3.700L19 11.5h-6L11 5.700z"/>',
}


def table(t: Table, caption: str, best: Collection[tuple[int, int]] = ()) -> str:
    """A table that scrolls in its own frame where the screen is narrower; the `best` cells are bold."""
    words = [bool(t.rows) and not all(_number(row[j]) for row in t.rows) for j in range(len(t.head))]
    head = "".join(
        f'<th scope="col"{" class=text" if w else ""}>{escape(h)}</th>' for h, w in zip(t.head, words, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(_cell(cell, (k, j) in best, words[j]) for j, cell in enumerate(row[1:], 1))
        + "</tr>"
        for k, row in enumerate(t.rows)
    )
    name = escape(caption, quote=True)
    return (
        f'<p class="note">{escape(caption)}</p>'
        f'<div class="scroll" role="region" aria-label="{name}" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(text: str, best: bool, word: bool) -> str:
    shown = f"<strong>{escape(text)}</strong>" if best else escape(text)
    return f"<td{' class=text' if word else ''}>{shown}</td>"


def _number(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:1] in "-–+" or cell == "never"


def figure(plot: Plot, name: str) -> str:
    """A plot's place, its legend of buttons, and its numbers; the script draws into it."""
    keys = "".join(_key(key) for key in plot.keys) if len(plot.keys) > 1 else ""
    zoom = '<button type="button" class="zoom" aria-pressed="false">second half only</button>' if plot.zoom else ""
    zoom += "".join(
        f'<button type="button" class="zoom" aria-pressed="false" data-x="{x}">over {x}</button>' for x in plot.over
    )
    group = f'<div class="legend" role="group" aria-label="Show or hide curves">{keys}{zoom}</div>'
    legend = group if keys + zoom else ""
    note = f'<p class="note">{escape(plot.note)}</p>' if plot.note else ""
    rows = f' style="--rows:{plot.rows}"' if plot.rows else ""
    tall, said = " tall" if plot.rows else "", escape(plot.said, quote=True)
    return (
        f'<figure id="f-{name}"><figcaption>{escape(plot.title)}</figcaption>{legend}'
        f'<div class="plot{tall}" id="{name}" role="img" aria-label="{said}"{rows}></div>{note}'
        f"<details><summary>The numbers</summary>{table(plot.table, plot.title)}</details></figure>"
    )


def _key(key: Key) -> str:
    label, drawn = escape(key.label, quote=True), sample(key.look, key.line)
    return f'<button type="button" aria-pressed="true" data-key="{label}">{drawn}{label}</button>'


def sample(look: Look, line: bool) -> str:
    """The line and the marker of a trace, as in the plot."""
    dashes = " ".join(map(str, look.dash))
    stroke = f'<path d="M0 7h32" stroke="{look.colour}" stroke-width="2.2" stroke-dasharray="{dashes}"/>' * line
    mark = f'<g fill="{look.colour}">{SHAPES[look.symbol]}</g>'
    return f'<svg width="32" height="14" viewBox="0 0 32 14" aria-hidden="true">{stroke}{mark}</svg>'


def data(values: Any) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")

"""Printing for people: results go to standard output, progress and complaints to standard error."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

WIDTH = 120  # columns of a table that is printed into a file or a pipe

talk = Console(stderr=True)


def screen() -> Console:
    """Standard output, as wide as the terminal, or WIDTH columns where there is none."""
    found = Console()
    if not found.is_terminal:
        found.width = WIDTH
    return found


def say(sentence: str) -> None:
    """Print a sentence on standard error, unless it is empty."""
    if sentence:
        talk.print(sentence, markup=False, highlight=False, soft_wrap=True)


def print_table(rows: Sequence[Mapping[str, Any]], title: str = "", empty: str = "nothing yet") -> None:
    """Print rows of named values as a table; numbers are aligned to the right."""
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD)
    for key in rows[0] if rows else [empty]:
        number = bool(rows) and any(isinstance(row[key], int | float) for row in rows)
        table.add_column(key.replace("_", " "), overflow="fold", justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(text_of, row.values()))
    screen().print(table, markup=False)


def text_of(value: Any) -> str:
    """A value in a cell of a table: four digits of a number, nothing for None."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def in_words(value: Any) -> str:
    """A setting as people read it: `sampling(size=100, base=bernoulli(p=0.1))`; long lists are cut."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key}={in_words(v)}" for key, v in value.items() if key != "kind" and v is not None)
        return f"{value['kind']}({inner})" if "kind" in value and inner else str(value.get("kind", inner))
    if isinstance(value, list | tuple):
        shown = ", ".join(map(in_words, value[:8] if len(value) <= 8 else value[:3]))
        return f"[{shown}]" if len(value) <= 8 else f"[{shown}, … {len(value)} values]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)

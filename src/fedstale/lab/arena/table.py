"""The leaderboard as rows of text, for the page, for Markdown and for the terminal."""

import math
from collections.abc import Callable, Sequence

from fedstale.lab.arena.records import Contest
from fedstale.lab.arena.scores import Interval, Standing

HEAD = (
    "rule", "mean rank (90 %)", "objective above the best (90 %)", "above full participation",
    "cells within 2 % of the best", "worst cell", "above the best there", "accuracy", "accuracy over time",
    "worst tenth of clients", "server memory", "client state", "sent up", "sent down", "client MFLOP", "notes",
)  # fmt: skip
TEXTS = (0, 5, 15)  # columns of words
WORDS = (
    "Rules are ordered by their mean rank by training objective in the last 10 rounds. Objectives are percentages "
    "above the best rule of each cell, and above FedAvg with every client in every round. Intervals come from a "
    "bootstrap over cells and seeds. The leading group, which is marked, are the rules that are not worse than the "
    "first beyond chance (Holm's correction, 5 %). Memory and messages are in sizes of the model; messages and "
    "operations are those of an average round."
)


def rows(standings: Sequence[Standing]) -> list[list[str]]:
    """The cells of the leaderboard."""
    return [_row(s) for s in standings]


def _row(s: Standing) -> list[str]:
    notes = [f"diverged in {s.diverged} runs"] if s.diverged else []
    notes += [f"rate at the end of its list in {s.edges} cells"] if s.edges else []
    costs = [_number(s.costs[name]) for name in ("server_memory", "client_state", "up", "down", "mflop")]
    return [
        s.rule, _interval(s.rank, "{:.1f}".format), _interval(s.above_best, percent), percent(s.above_full),
        f"{100 * s.near:.0f} %", s.worst_cell, percent(s.worst_above), share(s.accuracy),
        share(s.accuracy_over_time), share(s.worst_decile), *costs, "; ".join(notes),
    ]  # fmt: skip


def results(contest: Contest) -> list[dict[str, object]]:
    """One row for each evaluation run of each rule in each cell: what the standings are made of."""
    names = sorted({name for c in contest.cells for e in c.entries.values() for name in e.scores})
    cells = [(c.name, c.hash, c.entries) for c in contest.cells]
    cells += [(f"{task}, full", "", {"full": entry}) for task, entry in contest.full.items()]
    return [
        {"cell": cell, "hash": of, "rule": rule, "rate": f"{e.rate:.6g}", "seed": seed}
        | {name: f"{e.scores[name][k]:.6g}" if name in e.scores else "" for name in names}
        for cell, of, entries in cells
        for rule, e in entries.items()
        for k, seed in enumerate(contest.about["seeds"])
    ]


def percent(value: float) -> str:
    """`+12.3 %`."""
    return f"{round(100 * value, 1) + 0.0:+.1f} %" if math.isfinite(value) else "–"


def share(value: float) -> str:
    """`93.4 %`."""
    return f"{100 * value:.1f} %" if math.isfinite(value) else "–"


def _number(value: float) -> str:
    return "–" if not math.isfinite(value) else "0" if value == 0 else f"{value:.3g}"


def _interval(of: Interval, text: Callable[[float], str]) -> str:
    return f"{text(of.mean)} ({text(of.low)} … {text(of.high)})"


def markdown(standings: Sequence[Standing], about: str) -> str:
    """The leaderboard as a Markdown table, with a line about the suite above it."""
    lines = [" | ".join(HEAD), "|".join(":--" if k in TEXTS else "--:" for k in range(len(HEAD)))]
    lines += [" | ".join(text.replace("|", "\\|") for text in _marked(s)) for s in standings]
    return f"{about}\n\n" + "\n".join(f"| {line} |" for line in lines) + f"\n\n{WORDS}\n"


def _marked(s: Standing) -> list[str]:
    """The first group in bold, where a page has a bar."""
    first, *rest = _row(s)
    return [f"**{first}**" if s.leading else first, *rest]

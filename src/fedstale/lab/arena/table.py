"""The leaderboard as rows of text, for the page, for Markdown and for the terminal."""

import math
from collections.abc import Callable, Mapping, Sequence

from fedstale.lab.arena.records import Cell, Contest, Entry
from fedstale.lab.arena.scores import CHANCE, Interval, Standing, pairs, standings

HEAD = (
    "rule", "missing progress (90 %)", "worst cell", "missing there", "cells within 2 points", "mean rank (90 %)",
    "accuracy behind the best (90 %)", "rounds to FedAvg's end", "behind full participation", "accuracy",
    "accuracy over time", "worst tenth of clients", "server memory", "client state", "sent up", "sent down",
    "client MFLOP", "notes",
)  # fmt: skip
TIMED = "hours to FedAvg's end"  # instead of rounds, with a clock
COSTS = ("server_memory", "client_state", "up", "down", "mflop")  # the columns before the notes
TEXTS = (0, 2, 17)  # columns of words
TIE = " ≈"  # behind a rule that is not worse than the first beyond chance
WORDS = (
    "Missing progress is the share of the best rule's way, from the first objective to its last one, that a rule "
    "did not go, mean over the cells: 0 % is the best rule, 100 % learns nothing. Rules are ordered by it. "
    "Intervals come from a bootstrap over cells and seeds. ≈ marks the rules that are not worse than the first "
    "beyond chance (Holm's correction, 5 %). Accuracy is in points behind the best rule of each cell. Rounds (or "
    "hours) to FedAvg's end are the median share of all after which a rule is where FedAvg ends, and in how many "
    "cells it gets there. Memory and messages are in sizes of the model; messages and operations are "
    "those of an average round."
)
CLOCK_WORDS = (
    "With a clock devices take their time, and all rules have the same hours, not the same rounds. FedAvg and rules"
    " in rounds wait for the first replies to a question; the others wait for nobody."
)
PAIR_WORDS = (
    "How much more of the best rule's progress the rule in the row misses than the rule in the column, on average "
    "over all cells. Bold: beyond chance, by a t-test over the seeds with Holm's correction for all pairs."
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


def head(cells: Sequence[Cell]) -> list[str]:
    """The names of the columns over these cells."""
    return [TIMED if name == HEAD[7] and cells[0].hours else name for name in HEAD]


def rows(found: Sequence[Standing]) -> list[list[str]]:
    """The cells of the leaderboard."""
    return [_row(s, TIE if k and s.leading else "") for k, s in enumerate(found)]


def _row(s: Standing, mark: str) -> list[str]:
    notes = [f"diverged in {s.diverged} runs"] if s.diverged else []
    notes += [f"rate at the end of its list in {s.edges} cells"] if s.edges else []
    costs = [_number(s.costs[name]) for name in COSTS]
    reached = f"{share(s.reached)} ({s.reaches} cells)" if s.reaches else "–"
    return [
        s.rule + mark, _interval(s.missing, share), s.worst_cell, share(s.worst_missing), f"{100 * s.near:.0f} %",
        _interval(s.rank, "{:.1f}".format), _interval(s.behind, points), reached, share(s.behind_full),
        share(s.accuracy), share(s.accuracy_over_time), share(s.worst_decile), *costs, "; ".join(notes),
    ]  # fmt: skip


def results(contest: Contest) -> list[dict[str, object]]:
    """One row for each evaluation run of each rule in each cell: what the standings are made of."""
    names = sorted(
        {name for c in (*contest.cells, *contest.timed) for e in c.entries.values() for name in e.scores}
    )
    cells = [(c.name, c.hash, c.entries) for c in (*contest.cells, *contest.timed)]
    cells += [(f"{task}, full", "", {"full": entry}) for task, entry in contest.full.items()]
    return [
        {"cell": cell, "hash": of, "rule": rule, "rate": f"{e.rate:.6g}", "server": e.server, "seed": seed}
        | {name: f"{e.scores[name][k]:.6g}" if name in e.scores else "" for name in names}
        for cell, of, entries in cells
        for rule, e in entries.items()
        for k, seed in enumerate(contest.about["seeds"])
    ]


def pair_rows(cells: Sequence[Cell]) -> tuple[list[list[str]], set[tuple[int, int]]]:
    """A row for each rule: its name, how much more it misses than every rule; and the cells beyond chance."""
    rules, above, strong = list(cells[0].entries), {}, set[tuple[int, int]]()
    for p in pairs(cells):
        a, b = rules.index(p.first), rules.index(p.second)
        above[a, b], above[b, a] = p.more, -p.more
        strong |= {(a, b + 1), (b, a + 1)} if p.p < CHANCE else set()
    each = range(len(rules))
    return [[rules[a], *(percent(above.get((a, b), math.nan)) for b in each)] for a in each], strong


def percent(value: float) -> str:
    """`+12.3 %`."""
    return f"{round(100 * value, 1) + 0.0:+.1f} %" if math.isfinite(value) else "–"


def points(value: float) -> str:
    """`1.2`."""
    return f"{round(100 * value, 1) + 0.0:.1f}" if math.isfinite(value) else "–"


def share(value: float) -> str:
    """`93.4 %`."""
    return f"{round(100 * value, 1) + 0.0:.1f} %" if math.isfinite(value) else "–"


def _number(value: float) -> str:
    return "–" if not math.isfinite(value) else "0" if value == 0 else f"{value:.3g}"


def _interval(of: Interval, text: Callable[[float], str]) -> str:
    return f"{text(of.mean)} ({text(of.low)} … {text(of.high)})"


def markdown(cells: Sequence[Cell], full: Mapping[str, Entry], columns: Sequence[int] = range(len(HEAD))) -> str:
    """Columns of the leaderboard over these cells as a Markdown table, with the first rule in bold."""
    (first, *rest), *others = rows(standings(cells, full))
    lines = [[*head(cells)], [":--" if k in TEXTS else "--:" for k in range(len(HEAD))]]
    lines += [[text.replace("|", "\\|") for text in row] for row in ([f"**{first}**", *rest], *others)]
    return "\n".join(f"| {' | '.join(line[k] for k in columns)} |" for line in lines)

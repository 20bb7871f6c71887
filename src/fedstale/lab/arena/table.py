"""The leaderboard as text: rows for the page and the terminal, Markdown, and a verdict for the documentation."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedstale.lab.arena.records import RECORD, Cell, Contest, Entry
from fedstale.lab.arena.scores import CHANCE, PLAIN, Interval, Standing, pairs, standings
from fedstale.lab.runs import metrics
from fedstale.lab.runs.metrics import percent
from fedstale.lab.runs.store import RunFolder, read_json

HEAD = (
    "rule", "missing progress (90 %)", "worst cell", "missing there", "cells within 2 points", "mean rank (90 %)",
    "accuracy behind the best (90 %)", "rounds to FedAvg's end", "behind full participation", "accuracy",
    "accuracy over time", "worst tenth of clients", "server memory", "client state", "sent up", "sent down",
    "client MFLOP", "notes",
)  # fmt: skip
TIMED = "hours to FedAvg's end"  # instead of rounds, with a clock
COSTS = ("server_memory", "client_state", "up", "down", "mflop")  # the columns before the notes
TEXTS = (0, 2, 17)  # columns of words
SHOWN = (0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 12)  # columns of the leaderboard
FEW = 3.0  # sizes of the model at the server: no row for every client
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
    reached = f"{percent(s.reached)} ({s.reaches} cells)" if s.reaches else "–"
    return [
        s.rule + mark, _interval(s.missing, percent), s.worst_cell, percent(s.worst_missing), percent(s.near, 0),
        _interval(s.rank, "{:.1f}".format), _interval(s.behind, points), reached, percent(s.behind_full),
        percent(s.accuracy), percent(s.accuracy_over_time), percent(s.worst_decile), *costs, "; ".join(notes),
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
    return [[rules[a], *(signed(above.get((a, b), math.nan)) for b in each)] for a in each], strong


def signed(value: float) -> str:
    """`+12.3 %`."""
    return f"{round(100 * value, 1) + 0.0:+.1f} %" if math.isfinite(value) else "–"


def points(value: float) -> str:
    """`1.2`."""
    return f"{round(100 * value, 1) + 0.0:.1f}" if math.isfinite(value) else "–"


def _number(value: float) -> str:
    return metrics.plain(value, 3) if math.isfinite(value) else "–"


def _interval(of: Interval, text: Callable[[float], str]) -> str:
    return f"{text(of.mean)} ({text(of.low)} … {text(of.high)})"


def markdown(cells: Sequence[Cell], full: Mapping[str, Entry], columns: Sequence[int] = range(len(HEAD))) -> str:
    """Columns of the leaderboard over these cells as a Markdown table, with the first rule in bold."""
    (first, *rest), *others = rows(standings(cells, full))
    lines = [[*head(cells)], [":--" if k in TEXTS else "--:" for k in range(len(HEAD))]]
    lines += [[text.replace("|", "\\|") for text in row] for row in ([f"**{first}**", *rest], *others)]
    return "\n".join(f"| {' | '.join(line[k] for k in columns)} |" for line in lines)


def verdict(contest: Contest) -> str:
    """Which rule to take and what it costs, in a paragraph."""
    every = standings(contest.cells, contest.full)  # of rules whose clients only train and send: they keep nothing
    found = [s for s in every if s.costs["client_state"] == 0 and s.costs["down"] <= 1.001 * s.costs["up"]]
    first, plain = found[0], next((s for s in found if s.rule == PLAIN), found[-1])
    lean = next((s for s in found if s.costs["server_memory"] <= FEW), plain)
    others = (
        "" if lean.rule == first.rule else f" Without such a memory the best rule is `{lean.rule}`: {_miss(lean)}."
    )
    return (
        f"**Take `{first.rule}`.** In {len(contest.cells)} test federations {_miss(first)}. FedAvg: "
        f"{_miss(plain)}. Test accuracy was on average {points(first.behind.mean)} points below that "
        f"of the most accurate rule (FedAvg {points(plain.behind.mean)}). {_speed(first, contest.cells[0].unit)} "
        f"It costs the server {first.costs['server_memory']:.3g} times the memory of the model, on average over "
        f"these federations, and the clients nothing.{others}\n"
    )


def _miss(s: Standing) -> str:
    mean, low, high = map(percent, s.missing)
    return (
        f"it missed on average {mean} of the progress that the best rule made there (90 % interval {low} to "
        f"{high}), {percent(s.worst_missing)} in its worst one (*{s.worst_cell}*), and at most 2 % in "
        f"{percent(s.near, 0)} of them"
    )


def _speed(s: Standing, unit: str) -> str:
    if not s.reaches:
        return "It never was where FedAvg ends."
    median = f" after {percent(s.reached)} of the {unit}s (median)" if s.reached == s.reached else ""
    return f"It was where FedAvg ends{median} in {s.reaches} of them."


def boards(contest: Contest, out: Path) -> str:
    """The main columns of the leaderboard, who is first with p known and estimated, and what was computed."""
    whole, *timed = (markdown(some, contest.full, SHOWN) for some in (contest.cells, contest.timed) if some)
    pieces = [whole, WORDS, _beliefs(contest), *(f"{CLOCK_WORDS}\n\n{board}" for board in timed)]
    return "\n\n".join([*pieces, _origin(contest, out)]) + "\n"


def _beliefs(contest: Contest) -> str:
    """The first rules by mean rank, for each belief about p."""
    told = []
    for belief in dict.fromkeys(c.belief for c in contest.cells):
        some = standings([c for c in contest.cells if c.belief == belief], contest.full)
        best = sorted(some, key=lambda s: s.rank.mean)[:4]
        told.append(f"with p {belief} " + ", ".join(f"`{s.rule}` {s.rank.mean:.1f}" for s in best))
    return f"The best mean ranks: {'; '.join(told)}."


def _origin(contest: Contest, out: Path) -> str:
    a, runs = contest.about, read_json(out / RECORD)["cells"]
    names = [run for cell in runs for rule in cell["rules"].values() for run in rule["runs"]]
    made = _commits([RunFolder(out / "runs" / name) for name in names])
    tuning = sum(rule["tuning_runs"] for cell in runs for rule in cell["rules"].values())
    return (
        f"Suite `{a['suite']}` at size `{a['size']}`, hash {a['hash']}: {len(names)} runs of the evaluation and "
        f"{tuning} of tuning, computed by `fedstale arena run --size {a['size']}`{made}."
    )


def _commits(runs: Sequence[RunFolder]) -> str:
    found = sorted({str(git["commit"])[:7] for run in runs if (git := run.environment().get("git"))})
    return f" with the code of commit {' and '.join(found)}" if found else ""

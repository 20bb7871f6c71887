"""A contest in words for the documentation: which rule to take, what it costs, and a table of the main numbers."""

from collections.abc import Sequence
from pathlib import Path

from fedstale.lab.arena import table
from fedstale.lab.arena.records import RECORD, Contest
from fedstale.lab.arena.scores import PLAIN, Standing, standings
from fedstale.lab.runs.store import RunFolder, read_json

SHOWN = (0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 12)  # columns of the leaderboard
FEW = 3.0  # sizes of the model at the server: no row for every client


def verdict(contest: Contest) -> str:
    """Which rule to take and what it costs, in a paragraph."""
    every = standings(contest.cells, contest.full)  # of rules whose clients only train and send: they keep nothing
    found = [s for s in every if s.costs["client_state"] == 0 and s.costs["down"] <= 1.001 * s.costs["up"]]
    first, plain = found[0], next((s for s in found if s.rule == PLAIN), found[-1])
    lean = next((s for s in found if s.costs["server_memory"] <= FEW), plain)
    others = (
        "" if lean.rule == first.rule else f" Without such a memory the best rule is `{lean.rule}`: {_miss(lean)}."
    )
    timed = contest.cells[0].hours is not None
    return (
        f"**Take `{first.rule}`.** In {len(contest.cells)} test federations {_miss(first)}. FedAvg: "
        f"{_miss(plain)}. Test accuracy was on average {table.points(first.behind.mean)} points below that "
        f"of the most accurate rule (FedAvg {table.points(plain.behind.mean)}). {_speed(first, timed)} "
        f"It costs the server {first.costs['server_memory']:.3g} times the memory of the model, on average over "
        f"these federations, and the clients nothing.{others}\n"
    )


def _miss(s: Standing) -> str:
    mean, low, high = map(table.share, s.missing)
    return (
        f"it missed on average {mean} of the progress that the best rule made there (90 % interval {low} to "
        f"{high}), {table.share(s.worst_missing)} in its worst one (*{s.worst_cell}*), and at most 2 % in "
        f"{100 * s.near:.0f} % of them"
    )


def _speed(s: Standing, timed: bool) -> str:
    if not s.reaches:
        return "It never was where FedAvg ends."
    of = "hours" if timed else "rounds"
    median = f" after {table.share(s.reached)} of the {of} (median)" if s.reached == s.reached else ""
    return f"It was where FedAvg ends{median} in {s.reaches} of them."


def boards(contest: Contest, out: Path) -> str:
    """The main columns of the leaderboard, who is first with p known and estimated, and what was computed."""
    whole, *timed = (table.markdown(some, contest.full, SHOWN) for some in (contest.cells, contest.timed) if some)
    pieces = [whole, table.WORDS, _beliefs(contest), *(f"{table.CLOCK_WORDS}\n\n{board}" for board in timed)]
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

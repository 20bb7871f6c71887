"""The files of a reproduced figure: picture, rows, tuning, curves, claims, and what it took."""

from collections.abc import Sequence
from pathlib import Path

from fedstale.lab.papers import claims, rates
from fedstale.lab.papers.figure import Figure
from fedstale.lab.plan import Cell, cost, digest, every_run
from fedstale.lab.recorder import environment
from fedstale.lab.runs import store
from fedstale.lab.runs.store import write_csv


def check(figure: Figure) -> None:
    """Refuse a drawing or a claim that does not exist, before anything is trained."""
    from fedstale.lab.papers.draw import drawing  # matplotlib is slow to load

    drawing(figure)
    for claim in figure.about.get("claims", []):
        claims.require_known(claim)


def stem(figure: Figure, cells: Sequence[Cell]) -> str:
    """The name of the figure's files without their ending; a figure with overrides has files of its own."""
    changed = f"-{digest(every_run(cells))}" if figure.changed else ""
    return f"{figure.name}-{figure.scale}{changed}"


def write(figure: Figure, cells: Sequence[Cell], out: Path, suffix: str) -> list[claims.Verdict]:
    """Write picture, rows, tuning and claims from the store alone: the same bytes however often interrupted."""
    from fedstale.lab.papers.draw import draw  # matplotlib is slow to load

    out.mkdir(parents=True, exist_ok=True)
    base = stem(figure, cells)
    rows, tuning = rates.rows(cells, figure.about.get("at", []))
    verdicts = claims.judge(figure.about.get("claims", []), rows)
    write_csv(out / f"{base}.csv", [row.columns() for row in rows])
    write_csv(out / f"{base}-tuning.csv", tuning)
    write_csv(out / f"{base}-claims.csv", [v._asdict() for v in verdicts])
    store.write(out / f"{base}-claims.txt", lambda f: f.write((text(figure, verdicts) + "\n").encode()))
    if figure.about.get("curves"):
        write_csv(out / f"{base}-curves.csv", rates.curves(rows))
    draw(figure, rows, out / f"{base}.{suffix}")
    return verdicts


def write_record(figure: Figure, cells: Sequence[Cell], out: Path, command: str, seconds: float) -> None:
    """Write scale, cost, versions and machine; `seconds` leave out the runs that were in the store already."""
    count, rounds = cost(cells)
    about = {"figure": figure.name, "scale": figure.scale, "reduced": figure.reduced, "runs": count}
    took = {"rounds": rounds, "seconds": round(seconds, 1)}
    store.write_json(out / f"{stem(figure, cells)}.json", about | took | environment(command))


def text(figure: Figure, verdicts: Sequence[claims.Verdict]) -> str:
    """The verdicts on the paper's claims, a line each."""
    reduced = f", reduced: {figure.reduced}" if figure.reduced else ""
    lines = [figure.about["title"], f"scale {figure.scale}{reduced}"]
    if "says" in figure.about:
        lines.append(f"the paper: {figure.about['says']}")
    for v in verdicts:
        counts = f"{v.holds} hold, {v.noise} within noise, {v.fails} do not"
        counts = counts if v.p is None else f"p = {v.p:.2g}"
        lines.append(f"  {v.verdict.upper():<14} {v.claim}  ({counts}{'; ' + v.detail if v.detail else ''})")
    return "\n".join(lines)

"""What a person sees: progress while runs are computed, and the table at the end."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedstale import experiment

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal


def follow(rounds: Iterable["experiment.Progress"], total: int, per_run: int, console: Console) -> list[str]:
    """Show the rounds as they come: a live display on a terminal, plain lines elsewhere."""
    return (
        _live(rounds, total, per_run, console) if console.is_terminal else _plain(rounds, total, per_run, console)
    )


def _live(rounds: Iterable["experiment.Progress"], total: int, per_run: int, console: Console) -> list[str]:
    name, note = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[note]}", markup=False)
    columns = [SpinnerColumn(), name, BarColumn(bar_width=24), MofNCompleteColumn(), note, TimeRemainingColumn()]
    reused: list[str] = []
    with Progress(*columns, console=console) as bars:
        everything = bars.add_task("all rounds", total=total * per_run, note="")
        current: dict[str, Any] = {}
        clock = _Clock()
        for p in rounds:
            name = _name(p)
            if p.reused:
                reused.append(name)
                bars.advance(everything, per_run)
                continue
            if name not in current:
                current[name] = bars.add_task(name, total=per_run, completed=p.t - 1, note="")
                bars.advance(everything, p.t - 1)
            clock.tick()
            bars.update(current[name], completed=p.t, note=_note(p.metrics))
            bars.update(everything, advance=1, note=f"{clock.speed:.0f} rounds/s")
            if p.result:
                bars.remove_task(current[name])
                bars.console.print(_done(p), markup=False, highlight=False)
    return reused


def _plain(rounds: Iterable["experiment.Progress"], total: int, per_run: int, console: Console) -> list[str]:
    reused: list[str] = []
    clock, said, done = _Clock(), time.monotonic(), 0
    for p in rounds:
        if p.reused:
            reused.append(_name(p))
            continue
        clock.tick()
        if p.result:
            done += 1
            console.print(_done(p), markup=False, highlight=False, soft_wrap=True)
        elif time.monotonic() - said > PLAIN_SECONDS:
            left = ((total - len(reused) - done) * per_run - p.t) / max(clock.speed, 1e-9)
            where = f"{_name(p)}: round {p.t}/{per_run}{_note(p.metrics)}"
            console.print(
                f"{where}, {clock.speed:.0f} rounds/s, {left:.0f} s left",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
            said = time.monotonic()
    return reused


class _Clock:
    """Rounds per second since it was made."""

    def __init__(self) -> None:
        self.start, self.count = time.monotonic(), 0

    def tick(self) -> None:
        self.count += 1

    @property
    def speed(self) -> float:
        return self.count / max(time.monotonic() - self.start, 1e-9)


def _name(p: "experiment.Progress") -> str:
    return f"{p.planned.algorithm.label}, seed {p.planned.seed}"


def _note(metrics: Mapping[str, Any]) -> str:
    """The latest value worth watching; an evaluation is shown until the next one comes."""
    if "accuracy" in metrics:
        _note.last = f", accuracy {metrics['accuracy']:.1%}"  # type: ignore[attr-defined]
    elif "objective" in metrics:
        _note.last = f", objective {metrics['objective']:.4g}"  # type: ignore[attr-defined]
    return f"{getattr(_note, 'last', '')}, {metrics['participants']} clients"


def _done(p: "experiment.Progress") -> str:
    result: Any = p.result
    value = f"accuracy {result['accuracy']['final']:.1%}, " if "accuracy" in result else ""
    objective = f"objective {result['objective']['final']:.4g}, " if "objective" in result else ""
    refused = f", {result['refused']} updates refused" if result["refused"] else ""
    return f"{_name(p)}: {value}{objective}{result['rounds_per_second']:.0f} rounds/s{refused}"


def summary(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row per algorithm: mean and standard deviation over the seeds of what the results hold."""
    rows = []
    for label, results in groups.items():
        row: dict[str, Any] = {"algorithm": label, "seeds": len(results)}
        for name in (n for n in ("accuracy", "loss", "objective", "distance") if n in results[0]):
            for which in ("final", "last10", "best"):
                values = [result[name][which] for result in results]
                row[f"{name}_{which}"] = float(np.mean(values))
                row[f"{name}_{which}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        row["rounds_per_second"] = float(np.mean([result["rounds_per_second"] for result in results]))
        rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The rows as a table: final, mean of the last 10 rounds, best, objective, speed."""
    main = "accuracy" if "accuracy_final" in rows[0] else "distance" if "distance_final" in rows[0] else "objective"
    out = Table(title=title, title_justify="left", caption_justify="left")
    out.caption = f"final, mean of the last 10 rounds and best {main}" + (", in %" if main == "accuracy" else "")
    if rows[0]["seeds"] > 1:
        out.caption += f"; mean ± standard deviation over {rows[0]['seeds']} seeds"
    out.add_column("algorithm")
    for heading in ["final", "last 10", "best", *(["objective"] if main != "objective" else []), "rounds/s"]:
        out.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = [_cell(row, f"{main}_{which}", main == "accuracy") for which in ("final", "last10", "best")]
        if main != "objective":
            cells.append(_cell(row, "objective_final", False))
        out.add_row(str(row["algorithm"]), *cells, f"{row['rounds_per_second']:.0f}")
    return out


def _cell(row: Mapping[str, Any], key: str, percent: bool) -> str:
    mean, std = row[key], row[f"{key}_std"]
    spread = row["seeds"] > 1
    if percent:
        return f"{100 * mean:.2f}" + (f" ± {100 * std:.2f}" if spread else "")
    return f"{mean:.4g}" + (f" ± {std:.2g}" if spread else "")

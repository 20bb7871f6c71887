"""What a person sees: progress while runs are computed, and the table at the end."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from fedstale.experiments.execute import Progress
from fedstale.runs import metrics
from fedstale.runs.metrics import WINDOWS
from fedstale.runs.statistics import spread

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal


def follow(rounds: Iterable[Progress], runs: int, per_run: int, console: Console) -> int:
    """Show the rounds as they come, live on a terminal, as plain lines elsewhere; how many runs were reused."""
    show = _Live(runs, per_run, console) if console.is_terminal else _Plain(runs, per_run, console)
    reused = 0
    with show:
        for p in rounds:
            reused += p.reused
            show.round(p)
    return reused


class _Live:
    """A bar for all rounds and one for the run at hand, with its speed, accuracy, participants and time left."""

    def __init__(self, runs: int, per_run: int, console: Console) -> None:
        name, note = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[note]}", markup=False)
        self.bars = Bars(SpinnerColumn(), name, BarColumn(24), MofNCompleteColumn(), note, TimeRemainingColumn(),
                         console=console)  # fmt: skip
        self.per_run, self.clock, self.value = per_run, _Clock(), ""
        self.all = self.bars.add_task("all rounds", total=runs * per_run, note="")
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> None:
        self.bars.start()

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def round(self, p: Progress) -> None:
        name = _name(p)
        if p.reused:
            self.bars.advance(self.all, self.per_run)
            return
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=self.per_run, completed=p.t - 1, note="")
            self.bars.advance(self.all, p.t - 1)
        self.value = _value(p.metrics) or self.value
        note = f"{self.value}, {p.metrics.get('participants', 0)} clients"
        self.bars.update(self.tasks[name], completed=p.t, note=note)
        self.bars.update(self.all, advance=1, note=f"{self.clock.tick():.0f} rounds/s")
        if p.result:
            self.bars.remove_task(self.tasks[name])
            self.bars.console.print(_done(p, p.result), markup=False, highlight=False)


class _Plain:
    """A line for every run that ends, and now and then one for the run at hand."""

    def __init__(self, runs: int, per_run: int, console: Console) -> None:
        self.left, self.per_run, self.console = runs * per_run, per_run, console
        self.clock, self.value, self.said = _Clock(), "", time.monotonic()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def round(self, p: Progress) -> None:
        self.left -= self.per_run if p.reused else 1
        if p.reused:
            return
        speed = self.clock.tick()
        self.value = _value(p.metrics) or self.value
        if p.result:
            self._say(_done(p, p.result))
        elif time.monotonic() - self.said > PLAIN_SECONDS:
            self.said = time.monotonic()
            where = f"{_name(p)}: round {p.t}/{self.per_run}, {self.value}, {p.metrics['participants']} clients"
            self._say(f"{where}, {speed:.0f} rounds/s, {self.left / speed:.0f} s left")

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Clock:
    """Rounds per second since it was made."""

    def __init__(self) -> None:
        self.start, self.count = time.monotonic(), 0

    def tick(self) -> float:
        self.count += 1
        return self.count / max(time.monotonic() - self.start, 1e-9)


def _name(p: Progress) -> str:
    return f"{p.planned.algorithm.label}, seed {p.planned.seed}"


def _value(line: Mapping[str, Any]) -> str:
    """The main metric of an evaluated round."""
    return next((f"{m.name} {m.text(line[m.name])}" for m in metrics.shown(line)), "")


def _done(p: Progress, result: Mapping[str, Any]) -> str:
    values = [f"{m.name} {m.text(result[m.name]['final'])}" for m in metrics.shown(result)]
    refused = [f"{result['refused']} updates refused"] if result["refused"] else []
    return f"{_name(p)}: " + ", ".join([*values, f"{result['rounds_per_second']:.0f} rounds/s", *refused])


def summary(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row per algorithm: mean and standard deviation over the seeds of what the results hold."""
    rows = []
    for label, results in groups.items():
        row: dict[str, Any] = {"algorithm": label, "seeds": len(results)}
        for m in metrics.evaluated(*results):
            for which in WINDOWS:
                mean, std, _ = spread([result[m.name][which] for result in results])
                row |= {f"{m.name}_{which}": mean, f"{m.name}_{which}_std": std}
        row["rounds_per_second"] = spread([result["rounds_per_second"] for result in results]).mean
        rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The rows as a table: three views of the main metric, the final value of the others, and the speed."""
    found = metrics.shown([key.removesuffix("_final") for key in rows[0]])
    views = zip(found[:1] * 3, WINDOWS, ("final", "last 10", "best"), strict=False)
    columns = [*views, *((m, "final", m.name) for m in found[1:])]
    out = Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    out.caption = f"final, mean of the last 10 rounds and best {found[0].label}" if found else ""
    if rows[0]["seeds"] > 1:
        out.caption += f"; mean ± standard deviation over {rows[0]['seeds']} seeds"
    out.add_column("algorithm", no_wrap=True)
    for heading in [*(heading for *_, heading in columns), "rounds/s"]:
        out.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        keys = [f"{m.name}_{which}" for m, which, _ in columns]
        stds = [row[f"{key}_std"] if k < 3 and row["seeds"] > 1 else None for k, key in enumerate(keys)]
        cells = [m.text(row[key], std) for (m, *_), key, std in zip(columns, keys, stds, strict=True)]
        out.add_row(str(row["algorithm"]), *cells, f"{row['rounds_per_second']:.0f}")
    return out

"""Progress of runs while they are computed: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from fedstale.experiments.execute import Progress
from fedstale.experiments.plan import Planned
from fedstale.runs import metrics

PLAIN_SECONDS = 10.0  # from one plain line to the next
WARM_UP_SECONDS = 1.0  # time left is not estimated before rounds have been timed for this long
Clock = Callable[[], float]


def follow(
    rounds: Iterable[Progress], planned: Sequence[Planned], console: Console, clock: Clock = time.monotonic
) -> int:
    """Show rounds as they are computed; returns how many runs were found finished in the store."""
    warmups = {p.warmup.folder: p.warmup for p in planned if p.warmup and not p.warmup.folder.finished}
    total = sum(int(p.config["rounds"]) for p in (*planned, *warmups.values()))
    show = _Live(total, console, clock) if console.is_terminal else _Plain(total, console, clock)
    reused = 0
    with show:
        for p in rounds:
            reused += p.reused
            show.round(p)
    return reused


class _Speed:
    """Rounds per second of each run, and of all together, timed from the first round that it is told of.

    The first round is not timed: it includes loading data and compiling.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.rounds, self.since = clock, 0, 0.0
        self.begun: dict[str, tuple[int, float]] = {}  # run → the round and the time at which it was first seen

    def tick(self, p: Progress) -> str:
        """Count a round; `12 rounds/s` of its run, or nothing while that is unknown."""
        now, name = self.clock(), _name(p)
        if not self.begun:
            self.since = now
        else:
            self.rounds += 1
        t, then = self.begun.setdefault(name, (p.t, now))
        return f"{(p.t - t) / (now - then):.3g} rounds/s" if p.t > t and now > then else ""

    def left(self, rounds: int) -> str:
        """`40 s left` for so many rounds of all runs, or nothing while that is unknown."""
        seconds = self.clock() - self.since
        if self.rounds == 0 or seconds < WARM_UP_SECONDS:
            return ""
        return f"{_duration(rounds * seconds / self.rounds)} left"


class _Live:
    """A bar for all rounds and one for each run in progress, with its main metric, participants and speed."""

    def __init__(self, total: int, console: Console, clock: Clock) -> None:
        name, note = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[note]}", markup=False)
        self.bars = Bars(SpinnerColumn(), name, BarColumn(24), MofNCompleteColumn(), note, TimeRemainingColumn(),
                         console=console)  # fmt: skip
        self.speed, self.values = _Speed(clock), dict[str, str]()
        self.all = self.bars.add_task("all rounds", total=total, note="")
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> None:
        self.bars.start()

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def round(self, p: Progress) -> None:
        name = _name(p)
        if p.reused:
            self.bars.advance(self.all, _rounds(p))
            return
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=_rounds(p), completed=p.t - 1, note="")
            self.bars.advance(self.all, p.t - 1)
        self.values[name] = _value(p.metrics) or self.values.get(name, "")
        note = _joined(self.values[name], _clients(p), self.speed.tick(p))
        self.bars.update(self.tasks[name], completed=p.t, note=note)
        self.bars.advance(self.all)
        if p.result:
            self.bars.remove_task(self.tasks[name])
            self.bars.console.print(_done(p, p.result), markup=False, highlight=False)


class _Plain:
    """A line for every run that ends, and one for the run in progress every PLAIN_SECONDS."""

    def __init__(self, total: int, console: Console, clock: Clock) -> None:
        self.left, self.console, self.clock = total, console, clock
        self.speed, self.values, self.said = _Speed(clock), dict[str, str](), clock()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def round(self, p: Progress) -> None:
        if p.reused:
            self.left -= _rounds(p)
            return
        name, speed = _name(p), self.speed.tick(p)
        self.left -= 1 if name in self.values else p.t  # a resumed run begins after round 1
        self.values[name] = _value(p.metrics) or self.values.get(name, "")
        if p.result:
            self._say(_done(p, p.result))
        elif self.clock() - self.said >= PLAIN_SECONDS:
            self.said = self.clock()
            where, left = f"round {p.t}/{_rounds(p)}", self.speed.left(self.left)
            self._say(f"{name}: {_joined(where, self.values[name], _clients(p), speed, left)}")

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _name(p: Progress) -> str:
    return f"{p.planned.algorithm.label}, seed {p.planned.seed}"


def _rounds(p: Progress) -> int:
    return int(p.planned.config["rounds"])


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _clients(p: Progress) -> str:
    count = p.metrics.get("participants")
    return "" if count is None else f"{count} client{'s' * (count != 1)}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _value(line: Mapping[str, Any]) -> str:
    """The main metric of an evaluated round; nothing for other rounds."""
    return next((f"{m.name} {m.text(line[m.name])}" for m in metrics.shown(line)), "")


def _done(p: Progress, result: Mapping[str, Any]) -> str:
    values = [f"{m.name} {m.text(result[m.name]['final'])}" for m in metrics.shown(result)]
    refused = f"{result['refused']} updates refused" if result["refused"] else ""
    return f"{_name(p)}: " + _joined(*values, f"{result['rounds_per_second']:.3g} rounds/s", refused)

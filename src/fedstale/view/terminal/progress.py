"""Progress of runs while they are computed: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bars

from fedstale.lab.execute import Progress, Stop, execute
from fedstale.lab.executors import Executor
from fedstale.lab.plan import Planned, warmups
from fedstale.lab.runs import metrics
from fedstale.lab.runs.status import duration
from fedstale.lab.schema import Experiment
from fedstale.simulate import Interrupted
from fedstale.view.terminal.console import say, talk
from fedstale.view.trackers.follow import Tracker, following

PLAIN_SECONDS = 10.0  # from one plain line to the next
WARM_UP_SECONDS = 1.0  # time left is not estimated before rounds have been timed for this long
Clock = Callable[[], float]


def follow(
    rounds: Iterable[Progress], planned: Sequence[Planned], to: Console, clock: Clock = time.monotonic
) -> int:
    """Show rounds as they are computed; returns how many runs were found finished in the store."""
    unfinished = [p for p in warmups(planned) if not p.folder.finished]
    total = sum(p.config["rounds"] for p in (*planned, *unfinished))
    status, reused, said = _Status(total, clock), 0, clock()
    warned = set[tuple[str, str]]()
    note = TextColumn("{task.description}", markup=False)
    with Bars(SpinnerColumn(), BarColumn(24), note, console=to, disable=not to.is_terminal) as bars:
        bar = bars.add_task("", total=total)
        for p in rounds:
            reused += p.reused
            for kind, sentence in p.metrics.get("warnings", {}).items():
                if (p.planned.algorithm.label, kind) not in warned:  # once, not for every seed
                    warned.add((p.planned.algorithm.label, kind))
                    say(f"warning: {_name(p)}: {sentence}", to)
            line = status.line(p)
            bars.update(bar, completed=total - status.left, description=line)
            if p.result and not p.reused:
                say(f"{_name(p)}: {_result(p.result)}", to)
            elif not to.is_terminal and not p.reused and clock() - said >= PLAIN_SECONDS:
                said = clock()
                say(line, to)
    return reused


def simulate_rest(e: Experiment, planned: Sequence[Planned], command: str) -> None:
    """Compute the runs of an experiment that are not stored yet; the same command goes on after a stop."""
    try:
        with Stop() as stop:
            follow(execute(e, planned, resume=True, command=command, stop=stop, say=say), planned, talk)
    except Interrupted:
        say("fedstale: interrupted; the same command goes on from here")
        raise typer.Exit(130) from None


class _Status:
    """What is known about the runs in progress: rounds left, main metric, and speed.

    The first round is not timed, because it includes loading data and compiling.
    """

    def __init__(self, total: int, clock: Clock) -> None:
        self.left, self.clock, self.timed, self.since = total, clock, -1, 0.0
        self.begun: dict[str, tuple[int, float]] = {}  # run → the round and the time at which it was first seen
        self.values: dict[str, str] = {}  # run → its main metric when it was last evaluated

    def line(self, p: Progress) -> str:
        """Count a round; where its run is, without what is not known yet."""
        if p.reused:
            self.left -= p.planned.config["rounds"]
            return ""
        if p.result:
            self.left -= p.planned.config["rounds"] - p.t  # a run that stopped early
        name, now = _name(p), self.clock()
        self.left -= 1 if name in self.begun else p.t  # a resumed run begins after round 1
        self.since, self.timed = self.since if self.begun else now, self.timed + 1
        first, then = self.begun.setdefault(name, (p.t, now))
        self.values[name] = _main(p) or self.values.get(name, "")
        speed = f"{(p.t - first) / (now - then):.3g} rounds/s" if p.t > first and now > then else ""
        clients = f"{p.metrics['participants']} clients" if "participants" in p.metrics else ""
        parts = (
            f"round {p.t}/{p.planned.config['rounds']}",
            f"{p.metrics['seconds'] / 3600:.3g} h of the clock" if "seconds" in p.metrics else "",
            self.values[name], clients, speed, self._time_left(now),
        )  # fmt: skip
        return f"{name}: {', '.join(filter(None, parts))}"

    def _time_left(self, now: float) -> str:
        if self.timed == 0 or now - self.since < WARM_UP_SECONDS:
            return ""
        seconds = self.left * (now - self.since) / self.timed
        return f"{duration(seconds)} left"


def _name(p: Progress) -> str:
    return f"{p.planned.algorithm.label}, seed {p.planned.seed}"


def _main(p: Progress) -> str:
    """The main metric of an evaluated round; nothing for other rounds."""
    found = metrics.shown(p.metrics, main=p.planned.config.get("main"))
    return next((f"{m.name} {m.text(p.metrics[m.name])}" for m in found), "")


def _result(result: Mapping[str, Any]) -> str:
    values = [f"{m.name} {m.text(result[m.name]['final'])}" for m in metrics.shown(result)]
    refused = [f"{result['refused']} updates refused"] if result["refused"] else []
    stopped = [f"stopped: {result['stopped']}"] if "stopped" in result else []
    return ", ".join([*values, f"{result['rounds_per_second']:.3g} rounds/s", *refused, *stopped])


Log = Annotated[
    list[Tracker] | None,
    typer.Option(
        "--log", metavar="TRACKER", help="Also log to tensorboard, wandb or mlflow, in OUT/logs; may be repeated."
    ),
]
On = Annotated[
    Executor, typer.Option("--executor", help="Where the runs are computed: processes here, or a Ray cluster.")
]


def logging(trackers: list[Tracker] | None, planned: Sequence[Planned], out: Path) -> AbstractContextManager[None]:
    """Log these runs while they are computed."""
    return following([p.folder for p in planned], trackers, out / "logs") if trackers else nullcontext()

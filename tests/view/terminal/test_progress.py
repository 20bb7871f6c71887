"""The lines that `fedstale run` prints where there is no terminal, with a clock that the test turns."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fedstale.view.terminal.runs import PLAIN_SECONDS, follow

ROUNDS = 400


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def planned(label: str) -> Any:
    named = {"algorithm": SimpleNamespace(label=label), "seed": 1, "title": f"{label}, seed 1"}
    return SimpleNamespace(**named, config={"rounds": ROUNDS}, warmup=None)


def progress(run: Any, t: int, reused: bool = False, **metrics: float) -> Any:
    return SimpleNamespace(planned=run, t=t, metrics={"participants": 13, **metrics}, result=None, reused=reused)


def lines(runs: list[Any], rounds: list[tuple[Any, float]], terminal: bool = False) -> list[str]:
    """What is printed for rounds that take so many seconds each."""
    clock, file = Clock(), io.StringIO()
    console = Console(file=file, width=200, force_terminal=terminal)

    def played() -> Any:
        for p, seconds in rounds:
            clock.now += seconds
            yield p

    follow(played(), runs, console, clock)
    return file.getvalue().splitlines()


def test_the_first_line_says_no_speed_and_no_time_that_nobody_knows() -> None:
    run = planned("fedavg")
    (line,) = lines([run], [(progress(run, 1), 150.0)])  # loading took long
    assert line == "fedavg, seed 1: round 1/400, 13 clients"


def test_time_left_is_estimated_from_rounds_that_were_timed() -> None:
    run = planned("fedavg")
    rounds = [(progress(run, 1, accuracy=0.5), 150.0)] + [(progress(run, t), 1.0) for t in range(2, 12)]
    _, line = lines([run], rounds)
    assert line == "fedavg, seed 1: round 11/400, accuracy 50.00 %, 13 clients, 1 rounds/s, 6 min left"


def test_speed_is_that_of_a_run_however_many_advance_together() -> None:
    runs = [planned(f"rule {k}") for k in range(5)]
    rounds = [(progress(run, t), 0.2) for t in range(1, 60) for run in runs]
    found = lines(runs, rounds)
    assert found
    assert all("1 rounds/s" in line for line in found)
    assert found[-1].endswith(
        f"{(5 * ROUNDS - 5 * int(found[-1].split('/')[0].split()[-1])) / 5 / 60:.0f} min left"
    )


def test_reused_and_resumed_rounds_are_not_left() -> None:
    old, resumed = planned("old"), planned("resumed")
    rounds = [(progress(old, ROUNDS, reused=True), 0.0)]
    rounds += [(progress(resumed, t), PLAIN_SECONDS / 10) for t in range(380, 392)]
    assert lines([old, resumed], rounds)[-1].endswith("1 rounds/s, 11 s left")


@pytest.mark.parametrize("terminal", [True, False])
def test_no_part_of_a_line_is_empty(terminal: bool) -> None:
    run = planned("fedavg")
    text = "\n".join(lines([run], [(progress(run, t), 11.0) for t in (1, 2, 3)], terminal))
    assert "13 clients" in text
    assert ", ," not in text

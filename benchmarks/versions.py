"""Another version of the source against this one: `python benchmarks/versions.py CHECKOUT [--workloads leaf,cnn]`.

Each plays the rounds of its own `benchmarks/workloads.py`, in alternating turns. The factors are other ÷ this one,
by the clock (best of the turns) and in processor time (mean): below 1 this version is the slower one.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import measure
import workloads

PLAY = """
import sys, time, workloads
with workloads.ours(workloads.WORKLOADS[sys.argv[1]]) as play:
    for _ in sys.stdin:
        begin = time.perf_counter()
        play()
        print("seconds", time.perf_counter() - begin, flush=True)
"""


@contextmanager
def playing(checkout: Path, workload: str) -> Iterator[measure.Player]:
    """A process that plays with the source of a checkout."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(str(checkout / folder) for folder in ("src", "benchmarks"))}
    command, pipe = [sys.executable, "-c", PLAY, workload], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        asks, says = child.stdin, child.stdout

        def play() -> float:
            asks.write("\n")
            asks.flush()
            return next(float(line.split()[1]) for line in says if line.startswith("seconds "))

        yield measure.Player(play, child.pid)


def compare(workload: str, other: Path, this: Path, turns: int) -> tuple[float, float]:
    """The factors of one workload, by the clock and in processor time."""
    with playing(other, workload) as old, playing(this, workload) as new:
        took = [[measure.turn(player) for player in (old, new)[:: 1 - 2 * (k % 2)]] for k in range(turns + 1)]
    pairs = [pair[:: 1 - 2 * (k % 2)] for k, pair in enumerate(took)][1:]  # the first turn does not count
    seconds = [min(pair[k].seconds for pair in pairs) for k in (0, 1)]
    cpu = [fmean(pair[k].cpu for pair in pairs) for k in (0, 1)]
    return seconds[0] / seconds[1], cpu[0] / cpu[1] if cpu[1] else 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="of the other version, such as one of `git worktree add`")
    parser.add_argument("--workloads", default="", help="comma-separated; all if omitted")
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args(arguments)
    for name in asked.workloads.split(",") if asked.workloads else workloads.WORKLOADS:
        clock, cpu = compare(name, asked.checkout.absolute(), Path(__file__).parents[1], asked.repeat)
        print(f"{name}: {clock:.3f} by the clock, {cpu:.3f} in processor time", flush=True)


if __name__ == "__main__":
    main()

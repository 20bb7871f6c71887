"""Timing for `fedstale bench`: our engines, a plain loop and other frameworks take turns in one run."""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import workloads
from overhead import milliseconds

import fedstale
from fedstale.core import known, require
from fedstale.estimators import Known
from fedstale.strategies.fedstale import FedStale

HERE = Path(__file__).parent
OURS, LOOP = "fedstale", "loop"  # training, and all else in a round of FedStale with half of the clients
PEERS = {"flower": "Flower's simulation, one ray actor per core", "pfl": "pfl-research, one process per core"}
CONTENDERS = {"naive": "a copy of the model and an optimiser per client, plain loop", **PEERS}
SIDE = 1024  # of the matrices whose product is the machine's peak
MOMENT = 0.25  # seconds that a turn takes at least
Timed = Callable[[], float]  # plays a round, says how many seconds it took


class Row(NamedTuple):
    """One contender on one workload."""

    workload: str
    contender: str
    seconds: float  # of a round, best of the turns
    median: float
    slower: float  # its best over ours
    gflops: float
    peak: float  # share of the matmul peak that was measured in between

    def readable(self) -> dict[str, Any]:
        """The row of a table: milliseconds, factors and percentages."""
        return {
            "workload": self.workload,
            "contender": self.contender,
            "ms": 1000 * self.seconds,
            "median": 1000 * self.median,
            "× ours": round(self.slower, 2),
            "GFLOP/s": round(self.gflops, 1),
            "% of peak": round(100 * self.peak),
        }


def compare(names: Sequence[str], against: Sequence[str], repeat: int, peers: Path) -> Iterator[Row]:
    """Every contender has one turn that does not count and `repeat` that do, all of them one after the other.

    The last row of a workload is what a round of all its runs costs besides training, in CPU time.
    """
    all_workloads = workloads.WORKLOADS
    for name in against:
        known(name, CONTENDERS, "contender")
    for name in names:
        known(name, all_workloads, "workload")
    for name in names or all_workloads:
        w = all_workloads[name]
        with ExitStack() as stack:
            who = [c for c in against if c not in PEERS or w.runs == 1]  # they play one run at a time
            players = {c: stack.enter_context(_player(c, name, peers)) for c in (OURS, *who, "peak")}
            took = [{c: turn(play) for c, play in players.items()} for _ in range(repeat + 1)][1:]
        best = {c: min(turn[c] for turn in took) for c in players}
        peak = 2 * SIDE**3 / best.pop("peak")
        for c, seconds in best.items():
            speed, median = workloads.flops(w) / seconds, statistics.median(turn[c] for turn in took)
            yield Row(name, c, seconds, median, seconds / best[OURS], speed / 1e9, speed / peak)
        d = sum(p.numel() for p in workloads.plain(w).parameters())
        loop = w.runs * milliseconds(2 * w.clients, w.clients, d, FedStale(0.5), Known(), rounds=repeat) / 1000
        yield Row(name, LOOP, loop, loop, loop / best[OURS], 0.0, 0.0)


def turn(play: Timed) -> float:
    """Seconds of a round, mean over a moment: who trains plays many in a row, not one with cold caches."""
    total, rounds = play(), 1
    while total < MOMENT:
        total, rounds = total + play(), rounds + 1
    return total / rounds


@contextmanager
def _player(contender: str, workload: str, peers: Path) -> Iterator[Timed]:
    if contender in PEERS:
        with _peer(contender, workload, peers) as ask:
            yield ask
    elif contender == OURS:
        with workloads.ours(workloads.WORKLOADS[workload]) as play:
            yield _timed(play)
    elif contender == "naive":
        yield _timed(workloads.naive(workloads.WORKLOADS[workload]))
    else:
        yield partial(workloads.fastest_product, SIDE)


def _timed(play: Callable[[], object]) -> Timed:
    def seconds() -> float:
        start = time.perf_counter()
        play()
        return time.perf_counter() - start

    return seconds


@contextmanager
def _peer(name: str, workload: str, peers: Path) -> Iterator[Timed]:
    """A framework in its own environment: it plays a round for every line that it is sent."""
    python, script = (peers / name / "bin" / "python").absolute(), HERE / f"peer_{name}.py"
    require(python.exists(), f"{name} must be installed for --against {name}: run benchmarks/peers.sh {name}")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (Path(fedstale.__file__).parents[1], HERE)))}
    with tempfile.TemporaryFile("w+") as log:
        command, pipe = [str(python), str(script), workload], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=env) as child:
            yield partial(_ask, child, log)


def _ask(child: "subprocess.Popen[str]", log: IO[str]) -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    for line in child.stdout:
        if line.startswith("seconds "):
            return float(line.split()[1])
    log.seek(0)
    raise ChildProcessError(f"a peer ended too early; the last that it said: {log.read()[-2000:]}")

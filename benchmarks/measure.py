"""Timing for `fedstale bench`: our engines, a plain loop and other frameworks take turns in one run."""

import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import workloads
from overhead import milliseconds

import fedstale
from fedstale.core import known, require
from fedstale.participation.estimators import Known
from fedstale.strategies.fedstale import FedStale

HERE = Path(__file__).parent
OURS, LOOP = "fedstale", "loop"  # training, and all else in a round of FedStale with half of the clients
PEERS = {
    "jax": "JAX, written by hand: a scan of local steps for all clients in one compiled program",
    "fedjax": "FedJAX's federated averaging",
    "flower": "Flower's simulation, one ray actor per core",
    "pfl": "pfl-research, one process per core",
}
ENVIRONMENTS = {name: "jax" if name == "fedjax" else name for name in PEERS}
SEVERAL = {"jax"}  # peers that play several runs at once
LEFT_OUT = {("jax", "cnn-15"), *((c, w) for c in ("jax", "fedjax") for w in ("mnist-cnn", "resnet18"))} | {
    (c, w) for c in ("jax", "fedjax", "pfl") for w in ("resnet18-augmented", "transformer-loop")
}
# XLA's convolutions are slow inside loops: a round of the ResNet takes FedJAX ten seconds
CONTENDERS = {"naive": "a copy of the model and an optimiser per client, plain loop", **PEERS}
SIDE = 1024  # of the matrices whose product is the machine's peak
MOMENT = 0.25  # seconds that a turn takes at least
PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


class Player(NamedTuple):
    """One contender."""

    play: Callable[[], float]  # plays a round, says how many seconds it took
    pid: int  # its process, which may have others


class Turn(NamedTuple):
    """The means of some rounds in a row."""

    seconds: float
    cpu: float  # seconds of processors, of all processes
    others: float  # processors that were busy with something else


class Row(NamedTuple):
    """One contender on one workload."""

    workload: str
    contender: str
    seconds: float  # of a round, best of the turns
    median: float
    cpu: float  # seconds of processors in a round, mean of the turns; 0 where the system does not say
    slower: float  # its best over ours
    costlier: float  # its cpu over ours
    others: float  # processors that were busy with something else meanwhile, mean
    gflops: float
    peak: float  # share of the matmul peak that was measured in between

    def readable(self) -> dict[str, Any]:
        """The row of a table: milliseconds, factors and percentages."""
        return {
            "workload": self.workload,
            "contender": self.contender,
            "ms": 1000 * self.seconds,
            "median": 1000 * self.median,
            "CPU ms": 1000 * self.cpu,
            "× ours": round(self.slower, 2),
            "CPU × ours": round(self.costlier, 2),
            "GFLOP/s": round(self.gflops, 1),
            "% of peak": round(100 * self.peak),
            "others": round(self.others, 2),
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
        who = [c for c in against if (w.runs == 1 or c not in PEERS or c in SEVERAL) and (c, name) not in LEFT_OUT]
        with ExitStack() as stack:
            players = {c: stack.enter_context(_player(c, name, peers)) for c in (OURS, *who, "peak")}
            apart = {player.pid for player in players.values()}
            with ThreadPoolExecutor() as pool:  # peers start and compile at once
                for first in [pool.submit(players[c].play) for c in who if c in PEERS]:
                    first.result()
            took = [{c: turn(player, apart) for c, player in players.items()} for _ in range(repeat + 1)][1:]
        best = {c: min(turn[c].seconds for turn in took) for c in players}
        peak, cpu = 2 * SIDE**3 / best.pop("peak"), {c: _mean(turn[c].cpu for turn in took) for c in players}
        for c, seconds in best.items():
            speed, median = workloads.flops(w) / seconds, statistics.median(turn[c].seconds for turn in took)
            busy, ratio = _mean(turn[c].others for turn in took), _ratio(cpu[c], cpu[OURS])
            yield Row(
                name, c, seconds, median, cpu[c], seconds / best[OURS], ratio, busy, speed / 1e9, speed / peak
            )
        d = sum(p.numel() for p in workloads.plain(w).parameters() if p.requires_grad)
        loop = w.runs * milliseconds(2 * w.clients, w.clients, d, FedStale(0.5), Known(), rounds=repeat) / 1000
        yield Row(name, LOOP, loop, loop, loop, loop / best[OURS], _ratio(loop, cpu[OURS]), 0.0, 0.0, 0.0)


def turn(player: Player, apart: Collection[int] = ()) -> Turn:
    """A turn of a moment: who trains plays many rounds in a row, not one with cold caches.

    Processes of other players are apart, though all are children of this one.
    """
    cpu, busy, start = processor_seconds(player.pid, apart), busy_seconds(), time.perf_counter()
    total, rounds = player.play(), 1
    while total < MOMENT:
        total, rounds = total + player.play(), rounds + 1
    passed, cpu = time.perf_counter() - start, processor_seconds(player.pid, apart) - cpu
    return Turn(total / rounds, cpu / rounds, max(0.0, (busy_seconds() - busy - cpu) / passed))


def processor_seconds(pid: int, apart: Collection[int] = ()) -> float:
    """Of a process and its descendants, without those that are apart; 0 where there is no /proc."""
    if not PROC.exists():
        return 0.0
    ticks, children = {}, defaultdict(list)
    for file in PROC.glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = file.read_text().rpartition(")")[2].split()
            own = int(file.parent.name)
            ticks[own] = int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
            children[int(fields[1])].append(own)
    found, left = 0, [pid]
    while left:
        one = left.pop()
        found += ticks.get(one, 0)
        left += [child for child in children[one] if child not in apart]
    return found / TICKS


def busy_seconds() -> float:
    """Of all processors, whoever used them."""
    if not PROC.exists():
        return 0.0
    user, nice, system, _, _, *more = map(int, (PROC / "stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(more)) / TICKS


def _ratio(theirs: float, ours: float) -> float:
    """0 where the clock of processors has not moved, or does not exist."""
    return theirs / ours if ours > 0 else 0.0


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


@contextmanager
def _player(contender: str, workload: str, peers: Path) -> Iterator[Player]:
    if contender in PEERS:
        with _peer(contender, workload, peers) as player:
            yield player
    elif contender == OURS:
        with workloads.ours(workloads.WORKLOADS[workload]) as play:
            yield Player(_timed(play), os.getpid())
    elif contender == "naive":
        yield Player(_timed(workloads.naive(workloads.WORKLOADS[workload])), os.getpid())
    else:
        yield Player(partial(workloads.fastest_product, SIDE), os.getpid())


def _timed(play: Callable[[], object]) -> Callable[[], float]:
    def seconds() -> float:
        start = time.perf_counter()
        play()
        return time.perf_counter() - start

    return seconds


@contextmanager
def _peer(name: str, workload: str, peers: Path) -> Iterator[Player]:
    """A framework in its own environment: it plays a round for every line that it is sent."""
    made = ENVIRONMENTS[name]
    python, script = (peers / made / "bin" / "python").absolute(), HERE / f"peer_{name}.py"
    require(python.exists(), f"{name} must be installed for --against {name}: run benchmarks/peers.sh {made}")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (Path(fedstale.__file__).parents[1], HERE)))}
    with tempfile.TemporaryFile("w+") as log:
        command, pipe = [str(python), str(script), workload], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=env) as child:
            yield Player(partial(_ask, child, log), child.pid)


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

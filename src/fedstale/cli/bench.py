"""`fedstale bench`: our engines beside the obvious loop and other frameworks, taking turns in one run."""

import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Annotated, NamedTuple

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedstale.cli.options import Format
from fedstale.core import known, require

OURS = "fedstale"
PEERS = {"flower": "Flower's simulation, one ray actor per core", "pfl": "pfl-research, one process per core"}
CONTENDERS = {"naive": "a copy of the model and an optimiser per client, plain loop", **PEERS}
SIDE = 1024  # of the matrices whose product is the machine's peak
MOMENT = 0.25  # seconds that a turn takes at least
Timed = Callable[[], float]  # plays a round, says how many seconds it took


class Row(NamedTuple):
    """One contender at one workload."""

    workload: str
    contender: str
    seconds: float  # of a round, best of the turns
    median: float
    slower: float  # its best over ours
    gflops: float
    peak: float  # share of the matmul peak that was measured in between


def bench(
    against: Annotated[str, typer.Option(help=f"Who else, with commas: {', '.join(CONTENDERS)}.")] = "naive",
    workloads: Annotated[str, typer.Option(help="Which ones, with commas; all if left out.")] = "",
    repeat: Annotated[int, typer.Option(help="Turns of each contender.", min=1)] = 5,
    peers: Annotated[Path, typer.Option(help="Their environments, from benchmarks/peers.sh.")] = Path(
        ".cache/peers"
    ),
    format: Annotated[Format, typer.Option("--format", help="How results are printed.")] = Format.text,
) -> None:
    """Measure a round of local training in our engines and, in turn with them, elsewhere."""
    rows = []
    for row in compare(_names(workloads), _names(against), repeat, peers):
        typer.echo(f"{row.workload}: {row.contender} {1000 * row.seconds:.4g} ms", err=True)
        rows.append(row)
    if format is Format.json:
        about = {"date": time.strftime("%Y-%m-%d"), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
        typer.echo(json.dumps(about | {"rows": [row._asdict() for row in rows]}, indent=1))
    else:
        Console().print(_table(rows))


def compare(workloads: Sequence[str], against: Sequence[str], repeat: int, peers: Path) -> Iterator[Row]:
    """Every contender has one turn that does not count and `repeat` that do, all of them one after the other."""
    from fedstale.cli.workloads import WORKLOADS, flops

    for name in against:
        known(name, CONTENDERS, "contender")
    for name in workloads:
        known(name, WORKLOADS, "workload")
    for name in workloads or WORKLOADS:
        w = WORKLOADS[name]
        with ExitStack() as stack:
            who = [c for c in against if c not in PEERS or w.runs == 1]  # they play one run at a time
            players = {c: stack.enter_context(_player(c, name, peers)) for c in (OURS, *who, "peak")}
            took = [{c: turn(play) for c, play in players.items()} for _ in range(repeat + 1)][1:]
        best = {c: min(turn[c] for turn in took) for c in players}
        peak = 2 * SIDE**3 / best.pop("peak")
        for c, seconds in best.items():
            speed, median = flops(w) / seconds, statistics.median(turn[c] for turn in took)
            yield Row(name, c, seconds, median, seconds / best[OURS], speed / 1e9, speed / peak)


def turn(play: Timed) -> float:
    """Seconds of a round, mean over a moment: who trains plays many in a row, not one with cold caches."""
    took = [play()]
    while sum(took) < MOMENT:
        took.append(play())
    return statistics.fmean(took)


@contextmanager
def _player(contender: str, workload: str, peers: Path) -> Iterator[Timed]:
    from fedstale.cli.workloads import WORKLOADS, fastest_product, naive, ours

    if contender in PEERS:
        with _peer(contender, workload, peers) as ask:
            yield ask
    elif contender == OURS:
        with ours(WORKLOADS[workload]) as play:
            yield _timed(play)
    elif contender == "naive":
        yield _timed(naive(WORKLOADS[workload]))
    else:
        yield partial(fastest_product, SIDE)


def _timed(play: Callable[[], object]) -> Timed:
    def seconds() -> float:
        start = time.perf_counter()
        play()
        return time.perf_counter() - start

    return seconds


@contextmanager
def _peer(name: str, workload: str, peers: Path) -> Iterator[Timed]:
    """A framework in its own environment: it plays a round for every line that it is sent."""
    python, script = (peers / name / "bin" / "python").absolute(), Path(f"benchmarks/peer_{name}.py")
    require(python.exists(), f"{name} must be installed for --against {name}: run benchmarks/peers.sh {name}")
    require(script.exists(), f"peers are measured from a checkout, where {script} is; got {Path.cwd()}")
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
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


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for column in ("workload", "contender", "ms", "median", "× ours", "GFLOP/s", "% of peak"):
        table.add_column(column, justify="left" if column in ("workload", "contender") else "right")
    for r in rows:
        ms, median = 1000 * r.seconds, 1000 * r.median
        cells = (f"{ms:.4g}", f"{median:.4g}", f"{r.slower:.2f}", f"{r.gflops:.1f}", f"{100 * r.peak:.0f}")
        table.add_row(r.workload, r.contender, *cells, end_section=False)
    return table


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]

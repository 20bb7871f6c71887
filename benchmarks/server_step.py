"""What the server's step of FedStale costs, and what rows in fewer bytes cost in variance.

    python benchmarks/server_step.py             time and bandwidth: float32, float16, int8; numpy and numba
    python benchmarks/server_step.py --auto      the step that tunes itself against one with a fixed β [--numpy]
    python benchmarks/server_step.py --million   a million clients of 10,000 parameters in a file (TMPDIR), int8
    python benchmarks/server_step.py --variance  the variance of the step, and where runs end

GB/s counts the update, the row read and the row written; `all` adds the sums in float64 and, for float16 and
int8, the updates read once more for their scale. Contenders take turns, and so does a plain copy of the rows.
`--clock cpu` counts processor time, for a machine that is busy with other things: that of all threads of a step.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import fedstale.memory.memory as passes
from fedstale.core import Array, Ids, Job, Local, Round, Strategy
from fedstale.core.rng import stream
from fedstale.engines import Serial
from fedstale.lab.runs.store import RunFolder
from fedstale.memory import Coding, Float16, Float32, Int8
from fedstale.participation import TwoGroups
from fedstale.registry import RECIPES
from fedstale.simulate import simulate
from fedstale.strategies import FedStale, Unbiased
from fedstale.tasks.quadratic import Quadratic

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
CODINGS: tuple[Coding, ...] = (Float32(), Float16(), Int8())
FEW, MANY = 1000, 1_000_000
NUMBA = passes.load("rows", "int8") is not None
show = Console(width=116, highlight=False).print


class Contender(NamedTuple):
    coding: Coding
    fused: bool
    n: int

    def step(self, state: Any, r: Round) -> Any:
        passes.WORTHWHILE = 0 if self.fused else 1 << 62
        return FedStale(0.5, memory=self.coding).aggregate(state, r)[1]


def closed(t: int, clients: Ids, updates: Array, weights: Array) -> Round:
    """A round whose updates are all there, every p_i being ½."""
    m, probs = len(clients), np.broadcast_to(np.float32(0.5), weights.shape)
    return Round(t, updates[0], clients, updates, np.ones((m, 1), np.bool_), updates[:, 0], weights, probs)


def cohorts(n: int, m: int, count: int) -> list[Ids]:
    """Different clients each, so that a row is out of the cache when its client comes again."""
    drawn = stream(0, "cohorts", n).choice(n, (count, m), replace=False)
    return [np.sort(row) for row in drawn]


def timed(m: int, d: int, turns: int, clock: Callable[[], float]) -> tuple[dict[Contender, list[float]], float]:
    """Seconds of every step, once all clients were heard, and the GB/s of a copy of as many rows."""
    updates = stream(0, "updates").standard_normal((m, d), np.float32)
    groups = max(2, min(10, int(4e8 / (4 * m * d))))
    kinds = [Contender(c, *way) for c in CODINGS for way in ((False, FEW), (NUMBA, FEW), (NUMBA, MANY))]
    states = {kind: FedStale(0.5, memory=kind.coding).init(kind.n, d) for kind in kinds}
    weights = {n: np.full(n, 1 / n, np.float32) for n in (FEW, MANY)}
    who = {n: cohorts(n, m, groups) for n in (FEW, MANY)}
    times: dict[Contender, list[float]] = {kind: [] for kind in kinds}
    rows, into, copies = np.ones((groups, m, d), np.float32), np.ones((m, d), np.float32), []
    for t in range(1, groups + turns + 1):
        start = clock()
        np.copyto(into, rows[t % groups])
        copies.append(clock() - start)
        for kind in kinds:
            r = closed(t, who[kind.n][t % groups], updates, weights[kind.n])
            start = clock()
            states[kind] = kind.step(states[kind], r)
            times[kind].append(clock() - start)
    return {kind: seconds[groups:] for kind, seconds in times.items()}, 8 * m * d / np.median(copies[groups:]) / 1e9


def speed(clock: Callable[[], float], turns: int) -> None:
    for m, d in ((13, 1_600_000), (100, 10_000)):
        times, copy = timed(m, d, turns, clock)
        heads = (
            "rows",
            f"N = {FEW:,}, numpy",
            "numba",
            f"N = {MANY:,}",
            "ratio",
            "GB/s",
            "of a copy",
            "all",
            "of a copy",
        )
        table = Table(*heads)
        table.title = (
            f"|S| = {m}, d = {d:,}: milliseconds a step, median of {turns}; a copy runs at {copy:.1f} GB/s"
        )
        for coding in CODINGS:
            plain, few, many = (
                1e3 * np.median(times[Contender(coding, fused, n)])
                for fused, n in ((False, FEW), (NUMBA, FEW), (NUMBA, MANY))
            )
            rows = (4 + 2 * np.dtype(coding.dtype).itemsize) * m * d  # the update, the row twice
            sums = 60 * d  # in float64: β times the sum, step and sum read and written, step to float32
            moved, everything = (x / few / 1e6 for x in (rows, rows + sums + 4 * coding.scaled * m * d))
            table.add_row(
                type(coding).__name__.lower(), f"{plain:.1f}", f"{few:.2f}" if NUMBA else "none", f"{many:.2f}",
                f"{many / few:.2f}", f"{moved:.1f}", f"{moved / copy:.0%}",
                f"{everything:.1f}", f"{everything / copy:.0%}",
            )  # fmt: skip
        show(table)


def auto(clock: Callable[[], float], turns: int) -> None:
    """Best of the turns, as all take turns: what else the machine does only adds to it."""
    table = Table("|S|, d, N", "fixed β", "recipe auto-unbiased", "recipe auto")
    for m, d, n in ((13, 1_600_000, 24), (13, 421_642, 24), (100, 10_000, 1000), (13, 7_850, 24)):
        rules = {"fixed": FedStale(0.5)} | {name: RECIPES[name].strategy for name in ("auto-unbiased", "auto")}
        updates, weights = stream(0, "updates").standard_normal((m, d), np.float32), np.full(n, 1 / n, np.float32)
        states, best = {name: rule.init(n, d) for name, rule in rules.items()}, dict.fromkeys(rules, np.inf)
        for t in range(1, turns + 11):
            clients = np.sort(stream(0, "clients", t).choice(n, m, replace=False))
            for name, rule in rules.items():
                r, start = closed(t, clients, updates, weights), clock()
                states[name] = rule.aggregate(states[name], r)[1]
                best[name] = min(best[name], clock() - start) if t > 10 else np.inf
        told = (f"{1e3 * seconds:.2f} ms, {seconds / best['fixed']:.2f} ×" for seconds in best.values())
        table.add_row(f"{m}, {d:,}, {n:,}", *told)
    show(table)


def used(what: str) -> int:
    """VmRSS or VmHWM of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) // 1024


def million(d: int = 10_000, m: int = 1000) -> None:
    """Every client is heard once, then a thousand more rounds' worth of random ones; then a resume."""
    updates = stream(0, "updates").standard_normal((m, d), np.float32)
    weights, order = np.full(MANY, 1 / MANY, np.float32), stream(0, "order").permutation(MANY)
    with tempfile.TemporaryDirectory() as place:
        strategy, folder = FedStale(0.5, memory=Int8(place)), RunFolder(Path(place))
        state, base, start = strategy.init(MANY, d), used("VmRSS"), time.perf_counter()

        def play(first: int, last: int, chosen: Callable[[int], Ids]) -> None:
            nonlocal state
            for t in range(first, last + 1):
                _, state = strategy.aggregate(state, closed(t, np.sort(chosen(t)), updates, weights))

        def told(what: str) -> None:
            nonlocal start
            took, disk = time.perf_counter() - start, sum(p.stat().st_blocks * 512 for p in Path(place).iterdir())
            ram = f"RAM {used('VmRSS')} MB, peak {used('VmHWM')} MB"
            show(f"{what:<36}{took:6.1f} s   disk {disk / 1e9:4.1f} GB   {ram}")
            start = time.perf_counter()

        show(f"{MANY:,} clients of {d:,} parameters, int8, {m} a round; before: RAM {base} MB")
        play(1, MANY // m, lambda t: order[(t - 1) * m : t * m])
        told("everybody heard once")
        folder.save_checkpoint(state)
        told(f"checkpoint of {(folder.path / 'checkpoint.npz').stat().st_size / 1e6:.0f} MB")
        play(1001, 1100, lambda t: stream(0, "again", t).choice(MANY, m, replace=False))
        told("100 more rounds of random clients")
        total = state.total.copy()
        state = folder.load_checkpoint(strategy.init(MANY, d))
        told("back to the checkpoint")
        play(1001, 1100, lambda t: stream(0, "again", t).choice(MANY, m, replace=False))
        told("the same 100 rounds again")
        show(f"the same bits: {total.tobytes() == state.total.tobytes()}")


def tasks() -> Iterator[tuple[str, Serial]]:
    from fedstale.data import Shards, federate, load
    from fedstale.tasks.images import image_task
    from fedstale.tasks.models import MLP

    yield "quadratic, d = 1,000", Serial(Quadratic.random(24, 1000, noise=1.0), Local(lr=0.02))
    digits = federate(load("digits"), Shards(2), 24, seed=0)
    task = image_task(digits, MLP((64,)))
    yield f"digits, MLP, d = {task.d:,}", Serial(task, Local(lr=0.05))


def variance(rounds: int = 400, β: float = 0.8) -> None:
    """E‖step - Σ a_i Δ_i‖² of four memories that see the same rounds, all clients training every round."""
    for name, engine in tasks():
        task, local, who = engine.task, engine.local, TwoGroups(0.1)
        rules: dict[str, Strategy] = {type(c).__name__.lower(): FedStale(β, memory=c) for c in CODINGS}
        rules["none (β = 0)"] = Unbiased()
        states, params = {key: rule.init(task.n, task.d) for key, rule in rules.items()}, task.init(0)
        errors: dict[str, list[float]] = {key: [] for key in rules}
        present = who.rows(task.n, stream(0, "participation"))
        for t in range(1, rounds + 1):
            updates = engine.train([Job(params, np.arange(task.n), 0, t, local)])[0].updates
            heard = np.flatnonzero(next(present))
            r = closed(t, heard, updates[heard], task.weights)._replace(probs=who.probs(task.n))
            full = task.weights.astype(np.float64) @ updates
            for key, rule in rules.items():
                step, states[key] = rule.aggregate(states[key], r)
                errors[key].append(float(np.sum((step - full) ** 2)))
                params = params + 0.5 * step if key == "float32" else params
        table = Table(
            "memory",
            "bytes a row",
            "variance of the step",
            "against float32",
            title=f"{name}, β = {β}, {rounds} rounds",
        )
        exact = np.mean(errors["float32"][rounds // 4 :])
        for key, found in errors.items():
            mean, size = np.mean(found[rounds // 4 :]), {"float32": 4, "float16": 2, "int8": 1}.get(key, 0) * task.d
            table.add_row(key, f"{size:,}", f"{mean:.4g}", f"{mean / exact - 1:+.3%}")
        show(table)
        ended(engine, rounds, β)


def ended(engine: Serial, rounds: int, β: float, seeds: int = 5) -> None:
    """Where whole runs end, with each memory."""
    for coding in CODINGS:
        ends = []
        for seed in range(1, seeds + 1):
            run = simulate(engine, FedStale(β, memory=coding), TwoGroups(0.1), rounds=rounds, seed=seed)
            ends.append(engine.task.evaluate([s.params for s in run][-1]))
        values = {key: np.array([float(end[key]) for end in ends]) for key in ends[0]}
        told = "  ".join(
            f"{key} {x.mean():.5g} ± {x.std(ddof=1) / np.sqrt(seeds):.2g}" for key, x in values.items()
        )
        show(f"  {type(coding).__name__.lower():8} after {rounds} rounds, {seeds} seeds: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--variance", action="store_true")
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--numpy", action="store_true", help="--auto without numba")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--turns", type=int, default=20)
    asked = parser.parse_args()
    if asked.million:
        million()
    elif asked.variance:
        variance()
    elif asked.auto:
        passes.WORTHWHILE = 1 << 62 if asked.numpy else passes.WORTHWHILE
        auto(CLOCKS[asked.clock], asked.turns)
    else:
        speed(CLOCKS[asked.clock], asked.turns)


if __name__ == "__main__":
    main()

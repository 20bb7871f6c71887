"""Time in a simulation: what is sent, the timeline of a run, and the parameters that clients still train on."""

from collections.abc import Iterator, Mapping

import numpy as np

from fedstale.clock import Load, Row
from fedstale.core.abilities import CountsSamples, WarmsUp, buffered
from fedstale.core.hooks import Hooks, hooks_of, layers
from fedstale.core.parts import require
from fedstale.core.records import Array, Checkpoint, Ids, Job, Round, Snapshot
from fedstale.simulate.run import Run

NUMBER = 4  # bytes of a number that is sent


def load_of(run: Run, hooks: Hooks) -> Load:
    """What a client does for an update: its steps, and the bytes of the vectors that it is sent and sends."""
    task, local = run.engine.task, run.local or run.engine.local
    numbers, keeper = task.d, buffered(task)
    more = len(keeper.initial_buffers) if keeper else 0
    down = NUMBER * (numbers * (1 + (hooks.drift is not None)) + more)  # SCAFFOLD sends its c as well
    up = NUMBER * (numbers * (1 + hooks.needs_last_gradient) + more)
    sizes = task.samples if isinstance(task, CountsSamples) else np.full(task.n, local.batch)
    steps = np.full(task.n, local.steps or 0) if local.epochs is None else local.epochs * local.per_epoch(sizes)
    return Load(steps, down, up)


def timeline_of(run: Run, load: Load) -> Iterator[Row]:
    """The timeline of a run with a clock: the same for all algorithms that send as much."""
    assert run.clock is not None
    return run.clock.rows(run.participation, run.engine.task.n, load, run.seed)


def limited(run: Run) -> Run:
    """The run with as many rounds as its clock's hours have steps, if those are fewer."""
    if run.clock is None or run.clock.hours is None:
        return run
    rows = run.clock.within(timeline_of(run, load_of(run, hooks_of(run.strategy))), run.rounds)
    require(len(rows) > 0, f"clock.hours: no step is made within {run.clock.hours:g} hours")
    return run._replace(rounds=len(rows))


def arrival_shares(run: Run) -> Array:
    """(n,) the share of the steps of this run in which an update of the client arrives; its p_i.

    A client that never arrives has that of one that comes in the step after the last: it is never divided by.
    """
    counts = np.zeros(run.engine.task.n)
    rows = timeline_of(run, load_of(run, hooks_of(run.strategy)))
    for _, row in zip(range(run.rounds), rows, strict=False):
        counts[row.clients] += 1
    return np.asarray(np.where(counts > 0, counts / run.rounds, 1 / (run.rounds + 1)), np.float32)


def check_clock(run: Run) -> None:
    """Refuse what cannot be with a clock, or without waiting for clients."""
    clock, hooks, local = run.clock, hooks_of(run.strategy), run.local or run.engine.local
    if clock is None:
        return
    name = type([*layers(run.strategy)][-1]).__name__  # of the rule itself, not of what records it
    require(hooks.unheard is None, f"clients of {name} train unheard in every round; a clock cannot time them")
    warm = isinstance(run.estimator, WarmsUp) and run.estimator.warmup_rounds > 0
    require(not warm, "warm-up rounds have no clock: warmup_rounds must be 0 with one")
    require(
        local.work is None, "a clock needs a known number of steps: local.steps or local.epochs, got local.work"
    )
    counted = local.epochs is None or isinstance(run.engine.task, CountsSamples)
    require(counted, "a clock needs local.steps with a task that does not count its samples, got local.epochs")
    if clock.waits(run.engine.task.n):
        return
    wait = "without rounds; use pace 'rounds'"
    require(hooks.select is None, f"{name} selects clients by their losses, which would change the timeline {wait}")
    require(hooks.drift is None, f"{name} changes local gradients by what the server knows now, not {wait}")
    require(
        hooks.starts is None, f"clients of {name} begin at points of their own, which a server cannot age {wait}"
    )
    require(run.defence is None, f"a defence compares updates from the same parameters, which differ {wait}")


def started(now: Checkpoint, row: Row, trained: Ids) -> Array | None:
    """(m, d) the parameters that these clients were sent; None if all were sent those of now."""
    ages = row.ages[np.searchsorted(row.clients, trained)]
    if not ages.any():
        return None
    sent = now.sent or {}
    return np.stack([sent[now.t - age] if age else now.params for age in ages.tolist()])


def aged(r: Round, row: Row, job: Job) -> Round:
    """The round with the ages of its updates, and what each was trained from."""
    ages = row.ages[np.searchsorted(row.clients, r.clients)]
    return r._replace(
        ages=ages, starts=None if job.starts is None else job.starts[np.searchsorted(job.clients, r.clients)]
    )


def timed(s: Snapshot, load: Load, hooks: Hooks, trained: Ids, r: Round, row: Row | None) -> Snapshot:
    """The snapshot with its bytes and, with a clock, its time; a rule that selects asks all who are there."""
    if row is None:
        asked = len(s.available) if hooks.select else len(s.chosen)
        up = load.up * len(trained) + (NUMBER * asked if hooks.select else 0)
        return s._replace(bytes_up=up, bytes_down=load.down * asked)
    return s._replace(
        bytes_up=row.bytes_up, bytes_down=row.bytes_down, ages=r.ages, seconds=row.seconds, lost=row.lost,
        idle=row.idle,
    )  # fmt: skip


def in_flight(before: Checkpoint, row: Row) -> Mapping[int, Array]:
    """The parameters that clients are still training on when the step after this checkpoint is made."""
    sent = {**(before.sent or {}), before.t: before.params}
    return {version: sent[version] for version in row.versions.tolist()}

"""A run: its parts and settings, the checkpoint that it begins with, and the ways in which it may end early."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from fedstale.channels import Lossless
from fedstale.clock import Clock, Load, Row
from fedstale.core.abilities import CountsSamples, EstimatesMixing, buffered, keeps_own
from fedstale.core.hooks import Hooks, hooks_of
from fedstale.core.local import Local
from fedstale.core.protocols import Channel, Engine, Estimator, Participation, Server, Strategy
from fedstale.core.records import NEW, Array, Belief, Checkpoint, Clients
from fedstale.defence import Defence, Liars
from fedstale.estimators import Known
from fedstale.privacy.ledger import Privacy
from fedstale.rng import stream
from fedstale.servers import Sgd

NUMBER = 4  # bytes of a number that is sent


class Interrupted(Exception):
    """The runs were asked to stop; `--resume` continues them."""


class Diverged(ArithmeticError):
    """The step, the parameters or all updates of a round, or of the last ones, are not finite: it cannot go on."""


class Run(NamedTuple):
    """The parts and settings of one simulation. `simulate` plays one run, `together` plays several in step."""

    engine: Engine
    strategy: Strategy
    participation: Participation
    rounds: int
    seed: int = 0
    server: Server = Sgd(1.0)
    estimator: Estimator = Known()
    channel: Channel = Lossless()
    local: Local | None = None  # instead of the engine's
    defence: Defence | None = None
    liars: Liars | None = None
    privacy: Privacy | None = None
    clock: Clock | None = None  # rounds have no time without one


class Fixed(NamedTuple):
    """What stays the same in all rounds of a run, asked for once."""

    n: int
    d: int
    weights: Array  # (n,) a_i
    share: Array | None  # (n,) chance that a coordinate is there, given that anything is; None if it always is
    local: Local
    hooks: Hooks
    load: Load  # what a client does and sends for an update
    mixing: Callable[[Belief], Array]  # (n,) belief about λ_i

    @classmethod
    def of(cls, run: Run) -> "Fixed":
        """That of a run which was checked."""
        task, none = run.engine.task, np.zeros(run.engine.task.n, np.float32)
        mixing = run.estimator.mixing if isinstance(run.estimator, EstimatesMixing) else lambda _: none
        n, d, local = task.n, task.d, run.local or run.engine.local
        share = run.channel.share(n, d)
        whole = None if (share == 1).all() else share  # to multiply by ones costs more than a round of few clients
        hooks = hooks_of(run.strategy)
        return cls(n, d, task.weights, whole, local, hooks, _load(run, hooks), mixing)


def first(run: Run) -> Checkpoint:
    """The checkpoint of round 0, where the run begins."""
    task, keeper = run.engine.task, buffered(run.engine.task)
    return Checkpoint(
        t=0,
        params=task.init(run.seed),
        state=run.strategy.init(task.n, task.d),
        belief=run.estimator.init(task.n),
        server=run.server.init(task.d),
        channel=run.channel.init(task.n, partial(stream, run.seed, "channel", 0)),
        buffers=keeper.initial_buffers if keeper else None,
        clients=_clients(run),
        defence=run.defence.init(task.n, task.d) if run.defence else None,
    )


def _clients(run: Run) -> Clients | None:
    """What clients have before round 1; None if they keep nothing."""
    if own := keeps_own(run.engine.task):
        return Clients({NEW: own.initial_state(run.seed)})
    return None if (run.local or run.engine.local).train is None else Clients()


def _load(run: Run, hooks: Hooks) -> Load:
    """What a client does for an update: its steps, and the bytes of the vectors that it is sent and sends."""
    task, local = run.engine.task, run.local or run.engine.local
    numbers, keeper = task.d, buffered(task)
    more = len(keeper.initial_buffers) if keeper else 0
    down = NUMBER * (numbers * (1 + (hooks.drift is not None)) + more)  # SCAFFOLD sends its c as well
    up = NUMBER * (numbers * (1 + hooks.needs_last_gradient) + more)
    sizes = task.samples if isinstance(task, CountsSamples) else np.full(task.n, local.batch)
    steps = np.full(task.n, local.steps or 0) if local.epochs is None else local.epochs * local.per_epoch(sizes)
    return Load(steps, down, up)


def timeline_of(run: Run) -> Iterator[Row]:
    """The timeline of a run with a clock: the same for all algorithms that send as much."""
    assert run.clock is not None
    return run.clock.rows(run.participation, run.engine.task.n, _load(run, hooks_of(run.strategy)), run.seed)

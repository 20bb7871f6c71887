"""The one loop: everything that happens in a round, in the order in which it happens."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, cast

import numpy as np

from fedstale.channels import Lossless
from fedstale.core import (
    Availability,
    BindsTask,
    Channel,
    Checkpoint,
    Engine,
    EstimatesMixing,
    Estimator,
    Ids,
    Job,
    Local,
    Mask,
    Mixes,
    Participation,
    Reply,
    Round,
    Server,
    Snapshot,
    Strategy,
    Task,
    WarmsUp,
    WithTruth,
    divides,
    drifts,
    require,
    selects,
)
from fedstale.estimators import Known
from fedstale.rng import stream
from fedstale.servers import Sgd

Play = Generator[Job | Snapshot, Reply | None, None]  # in turn: a job, answered by its reply, and a snapshot


class Diverged(ArithmeticError):
    """A step that is not finite: the run cannot go on."""


class Run(NamedTuple):
    """One simulation, all of it: `simulate` plays one, `together` several in step."""

    engine: Engine
    strategy: Strategy
    participation: Participation
    rounds: int
    seed: int = 0
    server: Server = Sgd(1.0)
    estimator: Estimator = Known()
    channel: Channel = Lossless()
    local: Local | None = None  # instead of the engine's


def simulate(
    engine: Engine,
    strategy: Strategy,
    participation: Participation,
    *,
    rounds: int,
    seed: int = 0,
    server: Server = Sgd(1.0),
    estimator: Estimator = Known(),
    channel: Channel = Lossless(),
    start: Checkpoint | None = None,
) -> Iterator[Snapshot]:
    """Rounds 1 … `rounds`, one snapshot each; from a checkpoint, the rounds after it."""
    run = Run(engine, strategy, participation, rounds, seed, server, estimator, channel)
    return _alone(engine, play(run, start))


def _alone(engine: Engine, run: Play) -> Iterator[Snapshot]:
    for snapshots in together(engine, [run]):
        if isinstance(snapshots[0], Diverged):
            raise snapshots[0]
        yield snapshots[0]


def together(engine: Engine, plays: Sequence[Play]) -> Iterator[Mapping[int, Snapshot | Diverged]]:
    """Several runs in step, their training in one batch, with the same bits as alone.

    Yields one snapshot for each run that is still going, under its place in `plays`; a run that
    diverged is named once and left out from then on.
    """
    live = dict(enumerate(plays))
    while jobs := {k: cast(Job, job) for k, run in live.items() if (job := next(run, None)) is not None}:
        live = {k: live[k] for k in jobs}
        done: dict[int, Snapshot | Diverged] = {}
        for (k, run), reply in zip(live.items(), engine.train(list(jobs.values())), strict=True):
            try:
                done[k] = cast(Snapshot, run.send(reply))
            except Diverged as stop:
                done[k] = stop
        yield done


def play(run: Run, start: Checkpoint | None = None) -> Play:
    """The run, checked and ready to be played from its start or from a checkpoint."""
    run = checked(run)
    return _play(run, start or first(run))


def checked(run: Run) -> Run:
    """The run, if it can be played, with its strategy bound to the task and its estimator ready for round 1."""
    n, d, rule = run.engine.task.n, run.engine.task.d, bound(run.strategy, run.engine.task)
    require(run.rounds >= 1, f"rounds must be at least 1, got {run.rounds}")
    require(run.seed >= 0, f"seed must be at least 0, got {run.seed}")
    require(not isinstance(rule, type), f"a strategy is an instance, such as FedAvg(), got {rule}")
    marginals = run.participation.probs(n) * run.channel.probs(n, d)
    never = np.flatnonzero(~(marginals > 0))
    require(
        len(never) == 0 or not divides(rule),
        f"{rule} divides by the participation probability, which must be above 0 and is 0 for "
        f"{len(never)} of {n} clients (first: {never[:5].tolist()}); leave them out or use FedAvg or MIFA",
    )
    estimator, process, lossy = run.estimator, run.participation, bool((run.channel.probs(n, d) < 1).any())
    require(
        not (isinstance(estimator, WarmsUp) and estimator.warmup_rounds > 0 and lossy),
        f"warm-up rounds do not pass through the channel: warmup_rounds must be 0 with {run.channel}",
    )
    if isinstance(estimator, WithTruth):
        mixing = process.mixing(n) if isinstance(process, Mixes) else np.zeros(n, np.float32)
        estimator = estimator.with_truth(marginals, mixing)
    return run._replace(strategy=rule, estimator=warmed_up(estimator, process, n, run.seed))


def bound(strategy: Strategy, task: Task) -> Strategy:
    """The strategy with the settings that it takes from the task, if any."""
    return strategy.bind(task) if isinstance(strategy, BindsTask) else strategy


def warmed_up(estimator: Estimator, participation: Participation, n: int, seed: int) -> Estimator:
    """The estimator after its warm-up rounds, if it asks for any; they are other draws than those of the run."""
    if not isinstance(estimator, WarmsUp) or estimator.warmup_rounds == 0:
        return estimator
    return estimator.warmed_up(participation.rows(n, stream(seed, "watched")))


def first(run: Run) -> Checkpoint:
    """Where the run begins: the checkpoint of round 0."""
    task = run.engine.task
    return Checkpoint(
        t=0,
        params=task.init(run.seed),
        state=run.strategy.init(task.n, task.d),
        belief=run.estimator.init(task.n),
        server=run.server.init(task.d),
        channel=run.channel.init(task.n, partial(stream, run.seed, "channel", 0)),
    )


def _play(run: Run, now: Checkpoint) -> Play:
    engine, strategy, participation, rounds, seed, server, estimator, channel, local = run
    n, d, weights, local = engine.task.n, engine.task.d, engine.task.weights, local or engine.local
    selecting, drifting = selects(strategy), drifts(strategy)
    mixes = estimator if isinstance(estimator, EstimatesMixing) else None
    rows = islice(participation.rows(n, stream(seed, "participation")), now.t, None)
    share = channel.share(n, d)
    _, params, state, belief, momentum, link = now

    for t in range(now.t + 1, rounds + 1):
        available = chosen = np.flatnonzero(next(rows))
        probs = estimator.probs(belief) * share
        if selecting:
            asked = engine.losses(Job(params, available, seed, t, local))
            mixing = mixes.mixing(belief) if mixes else np.zeros(n, np.float32)
            chosen, state = selecting.select(state, Availability(t, available, asked, weights, probs, mixing))

        streams = partial(stream, seed, "channel", t)
        reached, link = channel.downlink(link, chosen, streams)
        trained = chosen[reached]
        reply = yield Job(params, trained, seed, t, local, drifting.drift(state, trained) if drifting else None)
        assert isinstance(reply, Reply), "a job is answered by its reply"
        arrived, link = channel.uplink(link, trained, d, streams)

        heard, sound = arrived.any(axis=1), _finite(reply, len(trained), d)
        keep = slice(None) if (heard & sound).all() else heard & sound  # a slice copies nothing
        clients, losses, total_lr = trained[keep], reply.losses[keep], local.steps * local.rate(t)
        r = Round(t, params, clients, reply.updates[keep], arrived[keep], losses, weights, probs, total_lr)
        step, state = strategy.aggregate(state, r)
        refused = trained[heard & ~sound]
        if not np.isfinite(step).all() or (len(refused) > 1 and len(clients) == 0):
            raise Diverged(f"round {t}: the step or every update is not finite; a smaller learning rate may help")
        change, momentum = server.apply(momentum, params, step)
        params = params + change
        if not np.isfinite(params).all():
            raise Diverged(f"round {t}: the parameters are not finite any more; a smaller learning rate may help")
        present = _mask(clients, n)
        if selecting:
            present |= _mask(available, n) & ~_mask(chosen, n)  # there, but not asked to train
        belief = estimator.observe(belief, present)

        now = Checkpoint(t, params, state, belief, momentum, link)
        yield Snapshot(t, params, step, available, chosen, clients, refused, losses, probs, now)


def _mask(clients: Ids, n: int) -> Mask:
    mask = np.zeros(n, np.bool_)
    mask[clients] = True
    return mask


def _finite(reply: Reply, m: int, d: int) -> Mask:
    """(m,) whose update and loss are finite: the others are refused and the round goes on without them."""
    require(reply.updates.shape == (m, d), f"the engine's updates must be ({m}, {d}), got {reply.updates.shape}")
    require(reply.losses.shape == (m,), f"the engine's losses must be ({m},), got {reply.losses.shape}")
    with np.errstate(invalid="ignore"):
        return np.isfinite(reply.updates @ np.zeros(d, np.float32)) & np.isfinite(reply.losses)

"""The simulation loop: everything that happens in a round, in the order in which it happens."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np

from fedstale.channels import Lossless
from fedstale.core import (
    NEW,
    Array,
    Availability,
    BadInput,
    BindsTask,
    Channel,
    Checkpoint,
    Clients,
    Engine,
    EstimatesMixing,
    Estimator,
    Floats,
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
    TrainsUnheard,
    WarmsUp,
    WithTruth,
    buffered,
    divides,
    drifts,
    keeps_own,
    needs_last_gradient,
    require,
    runs_loops,
    selects,
    shown,
    starts_clients,
    train,
    trains_unheard,
    weighted_sum,
)
from fedstale.core.names import matched, names_of
from fedstale.defence import Defence, Liars, screened
from fedstale.estimators import Known
from fedstale.rng import stream
from fedstale.servers import Sgd

Play = Generator[Job | Snapshot, Reply | None, None]  # yields a job, is sent its reply, yields a snapshot, …


class Interrupted(Exception):
    """The runs were asked to stop; `--resume` continues them."""


class Diverged(ArithmeticError):
    """The step, the parameters or all updates of a round are not finite: the run cannot go on."""


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
    defence: Defence | None = None,
    liars: Liars | None = None,
    start: Checkpoint | None = None,
) -> Iterator[Snapshot]:
    """Play rounds 1 … `rounds` and yield a snapshot after each; with `start`, the rounds after that checkpoint.

    A `defence` judges every update before the strategy sees it; `liars` are clients that lie, to try it out.
    """
    run = Run(engine, strategy, participation, rounds, seed, server, estimator, channel, None, defence, liars)
    return _alone(engine, play(run, start))


def _alone(engine: Engine, run: Play) -> Iterator[Snapshot]:
    for snapshots in together(engine, [run]):
        if isinstance(snapshots[0], Diverged):
            raise snapshots[0]
        yield snapshots[0]


def together(engine: Engine, plays: Sequence[Play]) -> Iterator[Mapping[int, Snapshot | Diverged]]:
    """Play several runs in step, with the training of all of them in one call: the same bits as one by one.

    Yields, for each round, index in `plays` → snapshot of every run that still goes on. A run that diverges
    yields its Diverged once and is left out from then on.
    """
    live = dict(enumerate(plays))
    while jobs := {k: cast(Job, job) for k, run in live.items() if (job := next(run, None)) is not None}:
        live = {k: live[k] for k in jobs}
        done: dict[int, Snapshot | Diverged] = {}
        for (k, run), reply in zip(live.items(), train(engine, list(jobs.values())), strict=True):
            try:
                done[k] = cast(Snapshot, run.send(reply))
            except Diverged as stop:
                done[k] = stop
        yield done


def play(run: Run, start: Checkpoint | None = None) -> Play:
    """Check the run, and return it ready to be played from its start or from a checkpoint."""
    run = checked(run)
    require(start is None or isinstance(start, Checkpoint), f"start must be like s.checkpoint, got {shown(start)}")
    return _play(run, start or first(run))


def checked(run: Run) -> Run:
    """The run, if it can be played, with its strategy bound to the task and its estimator ready for round 1."""
    _check_kinds(run)
    run = run._replace(participation=matched(run.participation, names_of(run.engine.task)))
    n, d, estimator, process = run.engine.task.n, run.engine.task.d, run.estimator, run.participation
    arrival, rule = run.channel.probs(n, d), bound(run.strategy, run.engine.task)
    if (run.local or run.engine.local).train is not None:
        runs_loops(run.engine.task)
        own = "the gradients of a training loop of your own (local.train) cannot be changed"
        require(drifts(rule) is None, f"{rule} adds a vector to every local gradient; {own}")
    require(
        not (isinstance(estimator, WarmsUp) and estimator.warmup_rounds > 0 and (arrival < 1).any()),
        f"warm-up rounds do not pass through the channel: warmup_rounds must be 0 with {run.channel}",
    )
    marginals, explicit = process.probs(n) * arrival, isinstance(estimator, WithTruth) and not estimator.needs_truth
    if isinstance(estimator, WithTruth):
        mixing = process.mixing(n) if isinstance(process, Mixes) else np.zeros(n, np.float32)
        estimator = estimator.with_truth(marginals, mixing)
    _check_attack(run)
    if divides(rule):  # a client that never comes needs no p_i if all p_i are given
        zero = (estimator.probs(estimator.init(n)) <= 0) & (marginals > 0) if explicit else ~(marginals > 0)
        never = np.flatnonzero(zero)
        require(
            len(never) == 0,
            f"{rule} divides by the participation probability, which must be above 0 and is 0 for "
            f"{len(never)} of {n} clients (first: {never[:5].tolist()}); leave them out or use FedAvg or MIFA",
        )
    return run._replace(strategy=rule, estimator=warmed_up(estimator, process, n, run.seed))


def _way_out(t: int, reply: Reply) -> str:
    """What may help against updates that are not finite: before any step it is not the learning rate."""
    if t == 1 and not np.isfinite(reply.losses).any():
        return "the loss is not finite before the first step: look for nan in the data, log(0) or 0 / 0 in the loss"
    return "a smaller learning rate may help"


def _check_attack(run: Run) -> None:
    """Refuse liars that are no clients, and a defence that cannot judge the updates of the strategy."""
    for name in ("defence", "liars"):
        if getattr(run, name) is not None:
            require_kind(name, getattr(run, name))
    if run.liars:
        most, n = max(run.liars.clients), run.engine.task.n
        require(most < n, f"liars.clients must be below {n}, the number of clients, got {most}")
    ok = run.defence is None or not (starts_clients(run.strategy) or needs_last_gradient(run.strategy))
    require(
        ok, f"a defence compares updates from the same parameters; clients of {run.strategy} send something else"
    )


KINDS: Mapping[str, tuple[Any, str]] = {  # what an argument must be, and an example
    "engine": (Engine, "Serial(task, Local(lr=0.05))"),
    "strategy": (Strategy, "FedAvg()"),
    "participation": (Participation, "Bernoulli(0.5)"),
    "server": (Server, "Sgd(1.0)"),
    "estimator": (Estimator, "Known()"),
    "channel": (Channel, "Lossless()"),
    "task": (Task, "Quadratic([[1.0]])"),
    "local": (Local, "Local(lr=0.05)"),
    "defence": (Defence, "Defence()"),
    "liars": (Liars, "Liars((0, 1))"),
}


def require_kind(name: str, value: object) -> None:
    """Refuse a class in the place of an instance, a number in the place of a server, a task as the engine, …"""
    kind, example = KINDS[name]
    ok = isinstance(value, kind) and not isinstance(value, type)
    require(ok, f"{name} must be an object such as {example}, got {_named(value)}")


def _check_kinds(run: Run) -> None:
    """Refuse parts that are of another kind, and numbers that are none."""
    for name in ("engine", "strategy", "participation", "server", "estimator", "channel"):
        require_kind(name, getattr(run, name))
    task = run.engine.task
    require(
        isinstance(task, Task), f"the engine's task must be a task such as Quadratic([[1.0]]), got {_named(task)}"
    )
    for name, number, least in (("rounds", run.rounds, 1), ("seed", run.seed, 0)):
        ok = isinstance(number, int | np.integer) and not isinstance(number, bool) and number >= least
        require(ok, f"{name} must be a whole number of at least {least}, got {number!r}")


def _named(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if isinstance(value, int | float | str | None) else f"a {type(value).__name__}"


def bound(strategy: Strategy, task: Task) -> Strategy:
    """The strategy with the settings that it takes from the task, if any."""
    return strategy.bind(task) if isinstance(strategy, BindsTask) else strategy


def warmed_up(estimator: Estimator, participation: Participation, n: int, seed: int) -> Estimator:
    """The estimator after its warm-up rounds, if it asks for any; they are other draws than those of the run."""
    if not isinstance(estimator, WarmsUp) or estimator.warmup_rounds == 0:
        return estimator
    return estimator.warmed_up(participation.rows(n, stream(seed, "watched")))


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


def _play(run: Run, now: Checkpoint) -> Play:
    engine, strategy, participation, rounds, seed, server, estimator, channel, local, defence, liars = run
    n, d, weights, local = engine.task.n, engine.task.d, engine.task.weights, local or engine.local
    selecting, drifting, share = selects(strategy), drifts(strategy), channel.share(n, d)
    starting, last, unheard = starts_clients(strategy), needs_last_gradient(strategy), trains_unheard(strategy)
    mixes = estimator if isinstance(estimator, EstimatesMixing) else None
    rows = islice(participation.rows(n, stream(seed, "participation")), now.t, None)

    for t in range(now.t + 1, rounds + 1):
        params, available = now.params, _present(rows, n, t)
        chosen, probs = available, estimator.probs(now.belief) * share
        if selecting:
            asked = engine.losses(_job(now, available, seed, t, local))
            mixing = mixes.mixing(now.belief) if mixes else np.zeros(n, np.float32)
            known = Availability(t, available, asked, weights, probs, mixing)
            chosen, state = _pair(strategy, "select", selecting.select(now.state, known))
            chosen, now = _selected(strategy, chosen, available), now._replace(state=state)

        streams = partial(stream, seed, "channel", t)
        reached, link = channel.downlink(now.channel, chosen, streams)
        trained = chosen[reached]
        busy = np.arange(n) if unheard else trained
        drift = drifting.drift(now.state, busy) if drifting else None
        starts = starting.starts(now.state, busy, params) if starting else None
        reply = yield _job(now, busy, seed, t, local, drift)._replace(starts=starts, last_gradient=last)
        assert isinstance(reply, Reply), "a job is answered by its reply"
        if unheard:
            reply, now = _heard(unheard, now, reply, trained)
        reply = liars.sent(reply, trained, t) if liars else reply
        arrived, link = channel.uplink(link, trained, d, streams)

        heard, finite = arrived.any(axis=1), _finite(reply, len(trained), d, now.buffers)
        keep = slice(None) if (heard & finite).all() else heard & finite  # a slice copies nothing
        clients, losses, refused = trained[keep], reply.losses[keep], trained[heard & ~finite]
        if len(refused) > 1 and len(clients) == 0:
            raise Diverged(f"round {t}: all updates are not finite; {_way_out(t, reply)}")
        work = reply.work and reply.work.of(keep)
        r = Round(t, params, clients, reply.updates[keep], arrived[keep], losses, weights, probs, work)
        r = r if reply.gradients is None else r._replace(gradients=reply.gradients[keep])
        idle = np.setdiff1d(available, chosen, assume_unique=True) if selecting else available[:0]
        buffers = None if reply.buffers is None else reply.buffers[keep]
        if now.clients is not None and reply.states:  # also of clients whose update was lost on its way
            now = now._replace(clients=now.clients.after(reply.states, trained[finite]))
        now, r, buffers, lies = screened(defence, strategy, now._replace(channel=link), r, buffers)
        step, now = close_round(strategy, server, estimator, now, r, idle, buffers)
        refused = np.sort(np.append(refused, [*lies])) if lies else refused
        yield Snapshot(t, now.params, step, available, chosen, r.clients, refused, r.losses, probs, now)


def _present(rows: Iterator[Mask], n: int, t: int) -> Ids:
    """The clients that the next row of a participation process names."""
    row = next(rows, None)
    require(row is not None, f"participation must give a row for every round, got {t - 1} of them")
    ok = isinstance(row, np.ndarray) and row.shape == (n,) and row.dtype.kind in "bui"
    if not ok:  # the sentence is made only then: to print arrays takes longer than a round
        raise BadInput(f"participation must give rows of {n} booleans, got {shown(row)} in round {t}")
    return np.flatnonzero(cast(Mask, row))


def _pair(strategy: Strategy, method: str, returned: Any) -> Any:
    """What a method of a strategy returned, if it has two entries, the second of which is the state."""
    if not (isinstance(returned, tuple) and len(returned) == 2):
        what = "step" if method == "aggregate" else "clients"
        raise BadInput(f"{method} of {type(strategy).__name__} must return ({what}, state), got {shown(returned)}")
    return returned


def _selected(strategy: Strategy, chosen: Any, available: Ids) -> Ids:
    """The clients that a strategy selects, if it may."""
    ok = isinstance(chosen, np.ndarray) and chosen.dtype.kind in "iu" and bool((np.diff(chosen) > 0).all())
    ok = ok and bool(np.isin(chosen, available, assume_unique=True).all())
    if not ok:
        what = f"select of {type(strategy).__name__} must return an ascending array of available clients"
        raise BadInput(f"{what}, got {shown(chosen)}")
    return cast(Ids, chosen)


def _heard(rule: TrainsUnheard, now: Checkpoint, reply: Reply, trained: Ids) -> tuple[Reply, Checkpoint]:
    """Of the reply of all clients that of those who are there; the others train for themselves, if it is finite."""
    sound = np.flatnonzero(np.isfinite(reply.updates).all(axis=1))
    others = np.setdiff1d(sound, trained, assume_unique=True)
    now = now._replace(state=rule.unheard(now.state, others, reply.updates[others], now.params))
    buffers = None if reply.buffers is None else reply.buffers[trained]
    gradients = None if reply.gradients is None else reply.gradients[trained]
    work = reply.work and reply.work.of(trained)
    return Reply(reply.updates[trained], reply.losses[trained], work, buffers, reply.states, gradients), now


def _job(now: Checkpoint, clients: Ids, seed: int, t: int, local: Local, drift: Array | None = None) -> Job:
    """The training of these clients in round t, from the checkpoint of the round before."""
    states = None if now.clients is None else now.clients.of(clients)
    return Job(now.params, clients, seed, t, local, drift, now.buffers, states)


@np.errstate(over="ignore", invalid="ignore")  # a run that diverges ends with a sentence, without warnings
def close_round(
    strategy: Strategy, server: Server, estimator: Estimator, now: Checkpoint, r: Round, idle: Ids,
    buffers: Floats | None = None,
) -> tuple[Array, Checkpoint]:  # fmt: skip
    """Close round r.t: the step, and the checkpoint after it. A simulation and a federation share this.

    `now` is the checkpoint of the round before, with what `select` and the channel have changed since.
    `idle` clients were available and not selected: the estimator counts them as heard. `buffers` (m, b) are those
    of the clients heard from.
    """
    step, state = _pair(strategy, "aggregate", strategy.aggregate(now.state, r))
    ok, got = np.shape(step) == now.params.shape, np.shape(step)
    require(ok, f"the step of {type(strategy).__name__} must be {now.params.shape}, as the parameters, got {got}")
    if not np.isfinite(step).all():
        way = "a smaller learning rate may help" if len(r.clients) else "without updates a strategy returns zeros"
        raise Diverged(f"round {r.t}: the step is not finite; {way}")
    step = np.asarray(step, np.float32)  # of a part of one's own, perhaps float64
    change, momentum = server.apply(now.server, now.params, step)
    params = (now.params + change).astype(np.float32, copy=False)
    if not np.isfinite(params).all():
        raise Diverged(f"round {r.t}: the parameters are not finite any more; a smaller learning rate may help")
    present = np.zeros(len(r.weights), np.bool_)
    present[r.clients] = present[idle] = True
    belief = estimator.observe(now.belief, present)
    kept = now.buffers if buffers is None else mean_buffers(r.weights[r.clients], buffers, now.buffers)
    return step, now._replace(t=r.t, params=params, state=state, belief=belief, server=momentum, buffers=kept)


def mean_buffers(weights: Array, rows: Floats, before: Floats | None) -> Floats | None:
    """Σ_S a_i b_i / Σ_S a_i of the clients heard from, whatever their p_i; as before if their weights are all 0."""
    total = float(weights.astype(np.float64).sum())
    return weighted_sum(weights, rows) / total if total > 0 else before


def _finite(reply: Reply, m: int, d: int, sent: Floats | None) -> Mask:
    """(m,) whose update, loss and buffers are finite; the others are refused and the round goes on without them."""
    require(reply.updates.shape == (m, d), f"the engine's updates must be ({m}, {d}), got {reply.updates.shape}")
    require(reply.losses.shape == (m,), f"the engine's losses must be ({m},), got {reply.losses.shape}")
    with np.errstate(invalid="ignore"):
        finite: Mask = np.isfinite(reply.updates @ np.zeros(d, np.float32)) & np.isfinite(reply.losses)
    if sent is None:
        return finite
    shape, buffers = (m, len(sent)), np.zeros(0) if reply.buffers is None else reply.buffers
    require(buffers.shape == shape, f"the engine's buffers must be {shape}, got {buffers.shape}")
    return finite & np.isfinite(buffers).all(axis=1)

"""The simulation loop: everything that happens in a round, in the order in which it happens."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

from fedstale.channels import Lossless
from fedstale.core.hooks import train
from fedstale.core.parts import require, shown
from fedstale.core.protocols import Channel, Engine, Estimator, Participation, Server, Strategy
from fedstale.core.records import Checkpoint, Job, Reply, Snapshot
from fedstale.core.rng import stream
from fedstale.defence import Defence, Liars
from fedstale.participation.clock import Clock
from fedstale.participation.estimators import Known
from fedstale.privacy.ledger import Privacy
from fedstale.privacy.noise import Accounted, Noised
from fedstale.simulate.round import (
    Refusals,
    aged,
    choose,
    close_round,
    heard,
    in_flight,
    order,
    present,
    receive,
    screen,
    timed,
)
from fedstale.simulate.run import Diverged, Fixed, Run, checked, first
from fedstale.simulate.servers import Sgd

Play = Generator[Job | Snapshot, Reply | None, None]  # yields a job, is sent its reply, yields a snapshot, …


def _play(run: Run, now: Checkpoint) -> Play:
    """The rounds after this checkpoint: Algorithm 2 of FedStale, for any strategy and any network."""
    fixed, channel, refusals = Fixed.of(run), run.channel, Refusals(now.t > 0)
    for t, available, row in present(run, now.t):
        streams = partial(stream, run.seed, "channel", t)
        asked, now = choose(run, fixed, now, t, available)
        reached, link = channel.downlink(now.channel, asked.chosen, streams)
        trained = asked.chosen[reached]
        job = order(run, fixed, now, trained, row)
        reply = yield job
        reply, now = heard(run, fixed, now, trained, reply)
        arrived, link = channel.uplink(link, trained, fixed.d, streams)
        r, now = receive(fixed, now._replace(channel=link), asked, trained, arrived, reply)
        r = r if row is None else aged(r, row, job)
        now, r = screen(run, now, r, fixed.hooks)
        kept = None if row is None else in_flight(now, row)
        step, now = close_round(run, now._replace(sent=kept), r)
        refused = refusals.after(r, last=t == run.rounds)
        s = Snapshot(t, now.params, step, available, asked.chosen, r.clients, refused, r.losses, r.probs, now)
        yield timed(s, fixed, trained, r, row)


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
    privacy: Privacy | None = None,
    clock: Clock | None = None,
    start: Checkpoint | None = None,
) -> Iterator[Snapshot]:
    """Play rounds 1 … `rounds` and yield a snapshot after each; with `start`, the rounds after that checkpoint.

    A `defence` judges every update before the strategy sees it; `liars` are clients that lie, to try it out.
    `privacy` adds noise to every step, and keeps a ledger of what the steps tell about each client.
    With a `clock` rounds take time, clients may arrive late, and updates may be older than the parameters.
    """
    parts = (engine, strategy, participation, rounds, seed, server, estimator, channel)
    run = Run(*parts, defence=defence, liars=liars, privacy=privacy, clock=clock)
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
    if start is not None and isinstance(start.state, Accounted) and isinstance(run.strategy, Noised):
        run.strategy.privacy.check(start.state.ledger)
    return _play(run, start or first(run))

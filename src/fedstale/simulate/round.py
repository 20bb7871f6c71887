"""The steps of a round: who is there and asked, for what, what is received and refused, and how the round closes.

A simulation, a strategy of Flower and a federation close their rounds by the same `screen` and `close_round`.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from fedstale.core import DeviceArray, Job, Reply, Round, Snapshot, on_host, weighted_sum
from fedstale.core.abilities import ListsPresent
from fedstale.core.hooks import Hooks, hooks_of
from fedstale.core.local import Floats
from fedstale.core.parts import BadInput, require, shown
from fedstale.core.protocols import Estimator, Server, Strategy
from fedstale.core.records import NOBODY, Array, Availability, Checkpoint, Ids, Mask
from fedstale.core.rng import stream
from fedstale.defence import Defence
from fedstale.participation.clock import Row
from fedstale.simulate.run import NUMBER, Diverged, Fixed, Run, timeline_of

NOT_FINITE = "its update, loss or buffers are not finite"
STREAK = 10  # refused updates in a row after which a run cannot go on
SMALL = 1 << 20  # numbers that are looked at in one call; more of them are looked at row by row, which saves memory


class Rules(Protocol):
    """The parts that close a round: a Run has them, and the rules of a federation."""

    @property
    def strategy(self) -> Strategy: ...
    @property
    def server(self) -> Server: ...
    @property
    def estimator(self) -> Estimator: ...
    @property
    def defence(self) -> Defence | None: ...


class Asked(NamedTuple):
    """Who is there in round t, and who of them is asked to train."""

    t: int
    available: Ids
    chosen: Ids
    idle: Ids  # available and not chosen
    probs: Array  # (n,) belief that a coordinate of client i's update is here


def present(run: Run, after: int) -> Iterator[tuple[int, Ids, Row | None]]:
    """The rounds after this one, and the clients that the participation process or the clock names in each."""
    n = run.engine.task.n
    if run.clock is not None:
        for t, line in enumerate(islice(timeline_of(run), after, run.rounds), after + 1):
            yield t, line.clients, line
        return
    who, draws = run.participation, stream(run.seed, "participation")
    read = _listed if isinstance(who, ListsPresent) else _there
    every: Iterator[Any] = who.present_clients(n, draws) if isinstance(who, ListsPresent) else who.rows(n, draws)
    rows = islice(every, after, None)
    for t in range(after + 1, run.rounds + 1):
        row = next(rows, None)
        require(row is not None, f"participation must give a row for every round, got {t - 1} of them")
        yield t, read(row, n, t), None


def _there(row: Any, n: int, t: int) -> Ids:
    """The clients of a row of booleans, which is checked."""
    ok = isinstance(row, np.ndarray) and row.shape == (n,) and row.dtype.kind in "bui"
    if not ok:  # the sentence is made only then: to print arrays takes longer than a round
        raise BadInput(f"participation must give rows of {n} booleans, got {shown(row)} in round {t}")
    return np.flatnonzero(cast(Mask, row))


def _listed(clients: Any, n: int, t: int) -> Ids:
    """The clients that a participation lists, checked."""
    ok = isinstance(clients, np.ndarray) and clients.ndim == 1 and clients.dtype.kind in "iu"
    ok = ok and (len(clients) == 0 or bool(clients[0] >= 0 and clients[-1] < n and (np.diff(clients) > 0).all()))
    if not ok:
        what = f"participation must list clients below {n} in ascending order"
        raise BadInput(f"{what}, got {shown(clients)} in round {t}")
    return cast(Ids, clients)


def choose(run: Run, fixed: Fixed, now: Checkpoint, t: int, available: Ids) -> tuple[Asked, Checkpoint]:
    """All who are there and may be asked, or those that the strategy selects by the losses that they report."""
    probs, chosen, state = run.estimator.probs(now.belief), available, now.state
    probs = probs if fixed.share is None else probs * fixed.share
    admit, select = fixed.hooks.admit, fixed.hooks.select
    if admit is None and select is None:
        return Asked(t, available, available, NOBODY, probs), now
    if admit:
        chosen, state = pair(run.strategy, "admit", admit(state, chosen, fixed.weights, probs))
        chosen = _selected(run.strategy, "admit", chosen, available)
    if select:
        losses = run.engine.losses(_job(run, fixed, now, chosen))
        known = Availability(t, chosen, losses, fixed.weights, probs, fixed.mixing(now.belief))
        there = chosen
        chosen, state = pair(run.strategy, "select", select(state, known))
        chosen = _selected(run.strategy, "select", chosen, there)
    idle = np.setdiff1d(available, chosen, assume_unique=True)
    return Asked(t, available, chosen, idle, probs), now._replace(state=state)


def _selected(strategy: Strategy, method: str, chosen: Any, available: Ids) -> Ids:
    """The clients that a strategy selects, if it may."""
    ok = isinstance(chosen, np.ndarray) and chosen.dtype.kind in "iu" and bool((np.diff(chosen) > 0).all())
    ok = ok and bool(np.isin(chosen, available, assume_unique=True).all())
    if not ok:
        what = f"{method} of {type(strategy).__name__} must return an ascending array of available clients"
        raise BadInput(f"{what}, got {shown(chosen)}")
    return cast(Ids, chosen)


def order(run: Run, fixed: Fixed, now: Checkpoint, trained: Ids, row: Row | None = None) -> Job:
    """The training of the next round: of these clients, or of all if the strategy's clients train unheard."""
    hooks = fixed.hooks
    clients = np.arange(fixed.n) if hooks.unheard else trained
    job = _job(run, fixed, now, clients)
    if hooks.drift:
        job = job._replace(drift=hooks.drift(now.state, clients))
    if hooks.starts:
        job = job._replace(starts=hooks.starts(now.state, clients, now.params))
    if row is not None and (sent := started(now, row, clients)) is not None:
        job = job._replace(starts=sent)
    return job._replace(last_gradient=True) if hooks.needs_last_gradient else job


def _job(run: Run, fixed: Fixed, now: Checkpoint, clients: Ids) -> Job:
    """The training of these clients from the checkpoint of the round before."""
    states = None if now.clients is None else now.clients.of(clients)
    return Job(now.params, clients, run.seed, now.t + 1, fixed.local, None, now.buffers, states)


def heard(run: Run, fixed: Fixed, now: Checkpoint, trained: Ids, reply: Reply | None) -> tuple[Reply, Checkpoint]:
    """What these clients send. The finite updates of all others that have trained go to the hook `unheard`."""
    assert isinstance(reply, Reply), "a job is answered by its reply"
    if unheard := fixed.hooks.unheard:
        others = np.setdiff1d(np.flatnonzero(finite_rows(reply.updates)), trained, assume_unique=True)
        now = now._replace(state=unheard(now.state, others, reply.updates[others], now.params))
        reply = reply.of(trained)
    return (run.liars.sent(reply, trained, now.t + 1) if run.liars else reply), now


def started(now: Checkpoint, row: Row, trained: Ids) -> Array | None:
    """(m, d) the parameters that these clients were sent; None if all were sent those of now."""
    ages = row.ages[np.searchsorted(row.clients, trained)]
    if not ages.any():
        return None
    sent = now.sent or {}
    return np.stack([sent[now.t - age] if age else now.params for age in ages.tolist()])


def receive(
    fixed: Fixed, now: Checkpoint, asked: Asked, trained: Ids, arrived: Mask, reply: Reply
) -> tuple[Round, Checkpoint]:
    """The round with the replies that arrived and are finite, and the checkpoint with what clients have kept."""
    came, finite = arrived.any(axis=1), _finite(reply, len(trained), fixed.d, now.buffers)
    keep, clients, why = came & finite, trained, dict[int, str]()
    if now.clients is not None and reply.states:  # also of clients whose update was lost on its way
        now = now._replace(clients=now.clients.after(reply.states, trained[finite]))
    if not keep.all():
        why = dict.fromkeys(trained[came & ~finite].tolist(), NOT_FINITE)
        losses, clients, arrived, reply = reply.losses, trained[keep], arrived[keep], reply.of(keep)
        if len(why) > 1 and len(clients) == 0:
            raise Diverged(f"round {asked.t}: no update is finite; {_way_out(asked.t, losses)}")
    updates, losses, work, buffers, _, gradients = reply
    given = (updates, arrived, losses, fixed.weights, asked.probs, work, gradients, buffers, asked.idle, why)
    return Round(asked.t, now.params, clients, *given), now


class Refusals:
    """The updates that a run has refused: it ends with a sentence where nothing is left to train with."""

    def __init__(self, used: bool) -> None:
        self.streak, self.lost, self.used = 0, 0, used  # since an update was finite; in all; whether one was used

    def after(self, r: Round, last: bool) -> Ids:
        """The clients that are refused in a round; `last` is whether it is the last one."""
        broken = sum(why == NOT_FINITE for why in r.refused.values())
        self.streak = 0 if len(r.clients) or broken < len(r.refused) else self.streak + broken
        self.used, self.lost = self.used or len(r.clients) > 0, self.lost + len(r.refused)
        if self.streak >= STREAK:
            way = "a smaller learning rate may help"
            raise Diverged(f"round {r.t}: the last {self.streak} updates are not finite; {way}")
        if last and self.lost and not self.used:
            what = f"no update was used in any round, {self.lost} were refused"
            raise Diverged(f"round {r.t}: {what}; see what clients send")
        return np.array(sorted(r.refused), np.int64)


def screen(rules: Rules, now: Checkpoint, r: Round, hooks: Hooks | None = None) -> tuple[Checkpoint, Round]:
    """The round without the updates that the defence refuses, and without what their clients had in the memory.

    `hooks` are those of the strategy, where they are known.
    """
    hooks = hooks or hooks_of(rules.strategy)
    if 0 < len(r.clients) < hooks.least:
        why = f"secure aggregation needs {hooks.least} clients in a round, got {len(r.clients)}"
        return now, r.of(NOBODY)._replace(refused={**r.refused, **dict.fromkeys(r.clients.tolist(), why)})
    if rules.defence is None or len(r.clients) == 0:
        return now, r
    verdict = rules.defence.judge(now.defence, r, hooks.inverse_weighting, descends=not hooks.drift)  # not SCAFFOLD
    kept: Mask = np.array([not reason for reason in verdict.reasons])
    lies = {int(i): why for i, why in zip(r.clients, verdict.reasons, strict=True) if why}
    if lies and hooks.forget:
        now = now._replace(state=hooks.forget(now.state, r.clients[~kept]))
    if (verdict.scales < 1).any():
        r = r._replace(updates=r.updates * verdict.scales[:, None])
    return now, r.of(kept)._replace(refused={**r.refused, **lies}) if lies else r


@np.errstate(over="ignore", invalid="ignore")  # a run that diverges ends with a sentence, without warnings
def close_round(rules: Rules, now: Checkpoint, r: Round) -> tuple[Array, Checkpoint]:
    """Close round r.t: the step, and the checkpoint after it.

    `now` is the checkpoint of the round before, with what `select` and the channel have changed since.
    """
    strategy = rules.strategy
    step, state = pair(strategy, "aggregate", strategy.aggregate(now.state, r))
    step = on_host(step) if isinstance(step, DeviceArray) else step
    ok, got = np.shape(step) == now.params.shape, np.shape(step)
    require(ok, f"the step of {type(strategy).__name__} must be {now.params.shape}, as the parameters, got {got}")
    if not np.isfinite(step).all():
        way = "a smaller learning rate may help" if len(r.clients) else "without updates a strategy returns zeros"
        raise Diverged(f"round {r.t}: the step is not finite; {way}")
    step = np.asarray(step, np.float32)  # of a part of one's own, perhaps float64
    change, momentum = rules.server.apply(now.server, now.params, step)
    params = (now.params + change).astype(np.float32, copy=False)
    if not np.isfinite(params).all():
        raise Diverged(f"round {r.t}: the parameters are not finite any more; a smaller learning rate may help")
    present = np.zeros(len(r.weights), np.bool_)
    present[r.clients] = present[r.idle] = True
    belief = rules.estimator.observe(now.belief, present)
    buffers = now.buffers if r.buffers is None else mean_buffers(r.weights[r.clients], r.buffers, now.buffers)
    return step, now._replace(t=r.t, params=params, state=state, belief=belief, server=momentum, buffers=buffers)


def _way_out(t: int, losses: Array) -> str:
    """What may help against updates that are not finite: before any step it is not the learning rate."""
    if t == 1 and not np.isfinite(losses).any():
        return "the loss is not finite before the first step: look for nan in the data, log(0) or 0 / 0 in the loss"
    return "a smaller learning rate may help"


def mean_buffers(weights: Array, rows: Floats, before: Floats | None) -> Floats | None:
    """Σ_S a_i b_i / Σ_S a_i of the clients heard from, whatever their p_i; as before if their weights are all 0."""
    total = float(weights.astype(np.float64).sum())
    return weighted_sum(weights, rows) / total if total > 0 else before


def pair(strategy: Strategy, method: str, returned: Any) -> Any:
    """What a method of a strategy returned, if it has two entries, the second of which is the state."""
    if not (isinstance(returned, tuple) and len(returned) == 2):
        what = "step" if method == "aggregate" else "clients"
        raise BadInput(f"{method} of {type(strategy).__name__} must return ({what}, state), got {shown(returned)}")
    return returned


def _finite(reply: Reply, m: int, d: int, sent: Floats | None) -> Mask:
    """(m,) whose update, loss and buffers are finite; the others are refused and the round goes on without them."""
    require(reply.updates.shape == (m, d), f"the engine's updates must be ({m}, {d}), got {reply.updates.shape}")
    require(reply.losses.shape == (m,), f"the engine's losses must be ({m},), got {reply.losses.shape}")
    finite: Mask = finite_rows(reply.updates) & np.isfinite(reply.losses)
    if sent is None:
        return finite
    shape, buffers = (m, len(sent)), np.zeros(0) if reply.buffers is None else reply.buffers
    require(buffers.shape == shape, f"the engine's buffers must be {shape}, got {buffers.shape}")
    return finite & np.isfinite(buffers).all(axis=1)


def finite_rows(rows: Array) -> Mask:
    """(m,) which rows (m, d) are finite, in this thread alone: a product with zeros wakes all threads of BLAS."""
    if isinstance(rows, DeviceArray):
        return np.asarray(rows.tensor.isfinite().all(dim=1).cpu().numpy())
    if rows.size <= SMALL:
        return np.asarray(np.isfinite(rows).all(axis=1))
    return np.array([np.isfinite(row).all() for row in rows], np.bool_)


def aged(r: Round, row: Row, job: Job) -> Round:
    """The round with the ages of its updates, and what each was trained from."""
    ages = row.ages[np.searchsorted(row.clients, r.clients)]
    return r._replace(
        ages=ages, starts=None if job.starts is None else job.starts[np.searchsorted(job.clients, r.clients)]
    )


def timed(s: Snapshot, fixed: Fixed, trained: Ids, r: Round, row: Row | None) -> Snapshot:
    """The snapshot with its bytes and, with a clock, its time; a rule that selects asks all who are there."""
    load, hooks = fixed.load, fixed.hooks
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

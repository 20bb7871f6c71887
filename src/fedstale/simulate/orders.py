"""The first half of a simulated round: who is there, who of them is asked, and what they are asked to do."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

import numpy as np

from fedstale.clock import Row
from fedstale.core.abilities import ListsPresent
from fedstale.core.parts import BadInput, require, shown
from fedstale.core.protocols import Strategy
from fedstale.core.records import NOBODY, Array, Availability, Checkpoint, Ids, Job, Mask, Reply
from fedstale.rng import stream
from fedstale.simulate.round import Asked, finite_rows, pair
from fedstale.simulate.run import Fixed, Run, timeline_of


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

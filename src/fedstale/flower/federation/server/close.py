"""How a round closes: `simulate.close_round`, the counts of each client, and a line of metrics."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, Checkpoint, Ids, Local, Round, Work
from fedstale.flower.federation.protocol.exchange import Outcome
from fedstale.flower.federation.protocol.link import Order
from fedstale.flower.federation.state.server_state import Rules, ServerState
from fedstale.lab.runs.store import fingerprint
from fedstale.privacy.noise import ledger_of
from fedstale.privacy.sums import Received, Summed
from fedstale.simulate import close_round, screen

LOST = "its memory is lost: all memories begin anew"


class RoundReplies(NamedTuple):
    """What came of a round's orders: everything that is known of the round but its step."""

    weights: Array  # (n,) a_i
    outcome: Outcome
    asked: Ids  # positions of the clients that were asked to train
    idle: Ids  # positions of the clients that were online, but not asked to train
    seconds: float
    refused: tuple[int, ...] = ()  # clients whose update the defence refused; they are rejected, too
    late: tuple[int, ...] = ()  # clients that were still at work when enough others had answered
    orders: Mapping[int, Order] = {}  # with a pace: client → the order that its update answers


def opened_round(rules: Rules, now: Checkpoint, clients: Ids, weights: Array, idle: Ids) -> Round:
    """The round of these clients without updates: they are not here yet, or the server has sums only."""
    m, probs = len(clients), rules.estimator.probs(now.belief)
    nothing, whole = np.zeros((m, 0), np.float32), np.ones((m, 1), np.bool_)
    return Round(now.t + 1, now.params, clients, nothing, whole, nothing.sum(axis=1), weights, probs, idle=idle)


def with_ages(r: Round, ages: Iterable[int], starts: Sequence[Array]) -> Round:
    """The round whose updates began so many steps ago, at these parameters."""
    told = np.array([*ages], np.int64)
    return r._replace(ages=told, starts=np.stack(starts) if told.any() else None)


def play_out(
    state: ServerState, rules: Rules, r: Round, weigh: Callable[[Mapping[int, str]], Array] | None = None
) -> tuple[ServerState, Round, Array]:
    """Close a round with these updates: the state after it, the round without what the defence refused, the step.

    `weigh(refused)` tells the weights again if the clients whose updates are refused have a say in them.
    """
    now, r = screen(rules, state.checkpoint, r)
    if r.refused and weigh is not None:
        r = r._replace(weights=weigh(r.refused))
    step, after = close_round(rules, now, r)
    return state._replace(checkpoint=after), r, step


def close(
    state: ServerState, rules: Rules, local: Local, replies: RoundReplies
) -> tuple[ServerState, dict[str, Any]]:
    """The state after the round, and the round's line of metrics."""
    if isinstance(rules.strategy, Summed):
        return _close_sums(state, rules, local, replies)
    now, accepted = state.checkpoint, [reply for _, reply in sorted(replies.outcome.accepted.items())]
    m, heard = len(accepted), state.positions(replies.outcome.accepted)
    r = opened_round(rules, now, heard, replies.weights, replies.idle)
    r = r._replace(
        updates=_gathered([a.update for a in accepted], len(now.params)),
        losses=np.array([a.loss for a in accepted], np.float32), work=_work(local, r.t, m),
    )  # fmt: skip
    if now.buffers is not None:  # each reply was checked to have them
        r = r._replace(buffers=np.array([a.buffers for a in accepted], np.float64).reshape(m, len(now.buffers)))
    if replies.orders:
        given = [replies.orders[i] for i in sorted(replies.outcome.accepted)]
        r = with_ages(r, (r.t - order.t for order in given), [order.params for order in given])
    state, r, step = play_out(state, rules, r)
    named = {int(state.ids[k]): why for k, why in r.refused.items()}
    replies = replies._replace(outcome=replies.outcome.without(named), refused=(*named,))
    count(state, replies.weights, replies.asked, r.clients, state.positions(replies.outcome.rejected))
    return state, _line(state, replies, r, step)


def _close_sums(
    state: ServerState, rules: Rules, local: Local, replies: RoundReplies
) -> tuple[ServerState, dict[str, Any]]:
    """Close a round whose clients keep their own memories; all begin anew after it if a client has lost its own."""
    summed, d = rules.strategy, len(state.checkpoint.params)
    assert isinstance(summed, Summed)
    accepted = sorted(replies.outcome.accepted.items())
    rows = {i: a.buffers for i, a in accepted if a.buffers is not None}
    lost = {i: LOST for i, row in rows.items() if len(row) == 0}
    good = {i: a._replace(buffers=None) for i, a in accepted if i not in lost}
    replies = replies._replace(outcome=replies.outcome.without(lost)._replace(accepted=good))
    received = Received(summed, summed.gathered([rows[i] for i in good], d))
    after, line = close(state, rules._replace(strategy=received), local, replies)
    if lost:
        now = after.checkpoint
        after = after._replace(checkpoint=now._replace(state=summed.forget(now.state, state.positions(lost))))
    return after, line


def _work(local: Local, t: int, m: int) -> Work | None:
    """How much the clients trained, where their orders say it: the server does not count a client's samples."""
    if local.steps is None:
        return None
    steps = np.full(m, local.steps)
    return Work(steps, steps * local.batch, local.rates(t, steps))


def _gathered(updates: list[Array], d: int) -> Array:
    """The updates as one array (m, d). Rows of one buffer are moved together in place, without a second copy."""
    if not updates:
        return np.zeros((0, d), np.float32)
    buffer = updates[0].base
    if not isinstance(buffer, np.ndarray) or buffer.ndim != 2 or any(u.base is not buffer for u in updates):
        return np.stack(updates)
    for k, update in enumerate(updates):  # ascending: a row only moves up, over one that is done with
        buffer[k] = update
    gathered: Array = buffer[: len(updates)]
    return gathered


def count(state: ServerState, weights: Array, asked: Ids, heard: Ids, rejected: Ids) -> None:
    """Count a closed round for each client."""
    counts, now = state.counts, state.checkpoint
    counts.rounds[:] += 1
    counts.asked[asked] += 1
    counts.heard[heard] += 1
    counts.rejected[rejected] += 1
    counts.last[heard] = now.t
    counts.target[:] += weights
    if traced := state.traced:
        counts.realised[:] += traced.weights


def _line(state: ServerState, replies: RoundReplies, r: Round, step: Array) -> dict[str, Any]:
    asked, outcome = state.ids[replies.asked].tolist(), replies.outcome
    a, ledger = r.weights[r.clients].astype(np.float64), ledger_of(state.checkpoint.state)
    told = {} if ledger is None else {"epsilon": round(float(ledger.epsilons().max()), 6)}
    loss = float(a @ r.losses / a.sum()) if len(a) and ledger is None else None  # no noise covers losses
    more = told | ({} if r.ages is None else {"ages": r.ages.tolist()})
    return {
        "round": r.t,
        "roster": state.roster,
        "clients": state.ids.tolist(),
        "asked": asked,
        "heard": state.ids[r.clients].tolist(),
        "idle": state.ids[replies.idle].tolist(),
        "absent": sorted(set(asked) - set(outcome.accepted) - set(outcome.rejected) - set(replies.late)),
        "late": list(replies.late),
        "rejected": {str(i): reason for i, reason in sorted(outcome.rejected.items())},
        "refused": sorted(replies.refused),
        "missing": np.delete(state.ids, r.clients).tolist(),
        "heard_weight": round(float(a.sum()), 6),
        "voids": state.voids,
        "train_loss": loss,
        "step_norm": float(np.linalg.norm(step.astype(np.float64))),
        "seconds": round(replies.seconds, 3),
        "fingerprint": fingerprint(state.checkpoint.params),
    } | more

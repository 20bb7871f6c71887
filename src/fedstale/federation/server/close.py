"""How a round closes: the step, the observation and the counts, in the arithmetic of `simulate`."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, Ids, Local, Round
from fedstale.experiments.tracer import Traced
from fedstale.federation.protocol.exchange import Outcome
from fedstale.federation.protocol.validation import limit, remembered
from fedstale.federation.state.server_state import Book, Rules
from fedstale.runs.store import fingerprint
from fedstale.simulate import Diverged


class Closing(NamedTuple):
    """A round of which everything is known but its step."""

    weights: Array  # (n,) a_i
    outcome: Outcome
    asked: Ids  # rows of those who were asked to train
    idle: Ids  # rows of those who were there, but not asked to train
    seconds: float


def rows(book: Book, clients: Iterable[int]) -> Ids:
    """The rows of these clients, ascending."""
    return np.flatnonzero(np.isin(book.ids, np.array(sorted(clients), np.int64)))


def sound(book: Book, outcome: Outcome, factor: float) -> Outcome:
    """Without the updates that are out of all proportion to the others."""
    most = limit(book.norms, [a.norm for a in outcome.accepted.values()], factor)
    kept = {i: a for i, a in outcome.accepted.items() if a.norm <= most}
    large = {i: "norm out of proportion" for i in outcome.accepted if i not in kept}
    return Outcome(kept, outcome.rejected | large)


def close(book: Book, rules: Rules, local: Local, c: Closing) -> tuple[Book, dict[str, Any]]:
    """The book after the round, and its line of metrics."""
    heard = rows(book, c.outcome.accepted)
    losses = np.array([c.outcome.accepted[i].loss for i in book.ids[heard].tolist()], np.float32)
    after, step = _stepped(book, rules, local, c, heard, losses)
    _count(after, c, heard)
    norms = [a.norm for _, a in sorted(c.outcome.accepted.items())]
    return after._replace(norms=remembered(book.norms, norms)), _line(after, c, heard, losses, step)


def _stepped(book: Book, rules: Rules, local: Local, c: Closing, heard: Ids, losses: Array) -> tuple[Book, Array]:
    now, t = book.checkpoint, book.checkpoint.t + 1
    updates = _gathered([c.outcome.accepted[i].update for i in book.ids[heard].tolist()], len(now.params))
    probs, arrived = rules.estimator.probs(now.belief), np.ones((len(heard), 1), np.bool_)
    total_lr = local.steps * local.rate(t)
    r = Round(t, now.params, heard, updates, arrived, losses, c.weights, probs, total_lr)
    step, state = rules.strategy.aggregate(now.state, r)
    change, momentum = rules.server.apply(now.server, now.params, step)
    params = now.params + change
    if not (np.isfinite(step).all() and np.isfinite(params).all()):
        raise Diverged(f"round {t}: the step is not finite; round {now.t} is the last good one")
    present = np.zeros(len(book.ids), np.bool_)
    present[heard] = present[c.idle] = True
    belief = rules.estimator.observe(now.belief, present)
    after = now._replace(t=t, params=params, state=state, belief=belief, server=momentum)
    return book._replace(checkpoint=after), step


def _gathered(updates: list[Array], d: int) -> Array:
    """(m, d) of rows that lie in one buffer, moved together in place: no second copy of them all."""
    if not updates:
        return np.zeros((0, d), np.float32)
    buffer = updates[0].base
    if not isinstance(buffer, np.ndarray) or buffer.ndim != 2 or any(u.base is not buffer for u in updates):
        return np.stack(updates)
    for k, update in enumerate(updates):  # ascending: a row only moves up, over one that is done with
        buffer[k] = update
    gathered: Array = buffer[: len(updates)]
    return gathered


def _count(book: Book, c: Closing, heard: Ids) -> None:
    tally, now = book.tally, book.checkpoint
    tally.rounds[:] += 1
    tally.asked[c.asked] += 1
    tally.heard[heard] += 1
    tally.rejected[rows(book, c.outcome.rejected)] += 1
    tally.last[heard] = now.t
    tally.target[:] += c.weights
    if isinstance(now.state, Traced):
        tally.realised[:] += now.state.weights


def _line(book: Book, c: Closing, heard: Ids, losses: Array, step: Array) -> dict[str, Any]:
    asked, o, a = book.ids[c.asked].tolist(), c.outcome, c.weights[heard].astype(np.float64)
    return {
        "round": book.checkpoint.t,
        "roster": book.roster,
        "clients": book.ids.tolist(),
        "asked": asked,
        "heard": book.ids[heard].tolist(),
        "idle": book.ids[c.idle].tolist(),
        "absent": sorted(set(asked) - set(o.accepted) - set(o.rejected)),
        "rejected": {str(i): reason for i, reason in sorted(o.rejected.items())},
        "voids": book.voids,
        "train_loss": float(a @ losses / a.sum()) if len(heard) else None,
        "step_norm": float(np.linalg.norm(step.astype(np.float64))),
        "seconds": round(c.seconds, 3),
        "fingerprint": fingerprint(book.checkpoint.params),
    }

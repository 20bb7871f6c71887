"""How a round closes: the step, the observation and the counts, in the arithmetic of `simulate`."""

from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, Ids, Local, Round
from fedstale.experiments.tracer import Traced
from fedstale.federation.protocol.exchange import Outcome
from fedstale.federation.protocol.validation import limit, remembered
from fedstale.federation.state.server_state import Rules, ServerState
from fedstale.runs.store import fingerprint
from fedstale.simulate import close_round


class Closing(NamedTuple):
    """A round of which everything is known but its step."""

    weights: Array  # (n,) a_i
    outcome: Outcome
    asked: Ids  # positions of the clients that were asked to train
    idle: Ids  # positions of the clients that were online, but not asked to train
    seconds: float


def without_large_norms(state: ServerState, outcome: Outcome, factor: float) -> Outcome:
    """The outcome, with updates rejected whose norm is out of proportion to the others."""
    most = limit(state.norms, [a.norm for a in outcome.accepted.values()], factor)
    kept = {i: a for i, a in outcome.accepted.items() if a.norm <= most}
    large = {i: "norm out of proportion" for i in outcome.accepted if i not in kept}
    return Outcome(kept, outcome.rejected | large)


def close(state: ServerState, rules: Rules, local: Local, c: Closing) -> tuple[ServerState, dict[str, Any]]:
    """The state after the round, and its line of metrics."""
    heard = state.positions(c.outcome.accepted)
    losses = np.array([c.outcome.accepted[i].loss for i in state.ids[heard].tolist()], np.float32)
    after, step = _stepped(state, rules, local, c, heard, losses)
    _count(after, c, heard)
    norms = [a.norm for _, a in sorted(c.outcome.accepted.items())]
    return after._replace(norms=remembered(state.norms, norms)), _line(after, c, heard, losses, step)


def _stepped(
    state: ServerState, rules: Rules, local: Local, c: Closing, heard: Ids, losses: Array
) -> tuple[ServerState, Array]:
    now, t = state.checkpoint, state.checkpoint.t + 1
    updates = _gathered([c.outcome.accepted[i].update for i in state.ids[heard].tolist()], len(now.params))
    probs, arrived = rules.estimator.probs(now.belief), np.ones((len(heard), 1), np.bool_)
    total_lr = local.steps * local.rate(t)
    r = Round(t, now.params, heard, updates, arrived, losses, c.weights, probs, total_lr)
    step, after = close_round(rules.strategy, rules.server, rules.estimator, now, r, c.idle)
    return state._replace(checkpoint=after), step


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


def _count(state: ServerState, c: Closing, heard: Ids) -> None:
    counts, now = state.counts, state.checkpoint
    counts.rounds[:] += 1
    counts.asked[c.asked] += 1
    counts.heard[heard] += 1
    counts.rejected[state.positions(c.outcome.rejected)] += 1
    counts.last[heard] = now.t
    counts.target[:] += c.weights
    if isinstance(now.state, Traced):
        counts.realised[:] += now.state.weights


def _line(state: ServerState, c: Closing, heard: Ids, losses: Array, step: Array) -> dict[str, Any]:
    asked, o, a = state.ids[c.asked].tolist(), c.outcome, c.weights[heard].astype(np.float64)
    return {
        "round": state.checkpoint.t,
        "roster": state.roster,
        "clients": state.ids.tolist(),
        "asked": asked,
        "heard": state.ids[heard].tolist(),
        "idle": state.ids[c.idle].tolist(),
        "absent": sorted(set(asked) - set(o.accepted) - set(o.rejected)),
        "rejected": {str(i): reason for i, reason in sorted(o.rejected.items())},
        "voids": state.voids,
        "train_loss": float(a @ losses / a.sum()) if len(heard) else None,
        "step_norm": float(np.linalg.norm(step.astype(np.float64))),
        "seconds": round(c.seconds, 3),
        "fingerprint": fingerprint(state.checkpoint.params),
    }

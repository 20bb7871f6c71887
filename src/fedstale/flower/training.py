"""A round of a Flower app: what is sent, who trains, and how the round closes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from flwr.app import ArrayRecord

from fedstale import core
from fedstale.core import BadInput, Ids, Round, Work
from fedstale.flower.arrays import Layout, Values, averaged
from fedstale.flower.federation.server.close import play_out
from fedstale.flower.federation.state.server_state import Rules
from fedstale.flower.population import Population, enter
from fedstale.flower.replies import Asked, Checked


class Training(NamedTuple):
    """The state of a training: the clients, and the model after the last round."""

    population: Population
    layout: Layout
    values: Mapping[str, Values]  # of all arrays

    @property
    def arrays(self) -> ArrayRecord:
        """The model as Flower sends it."""
        return self.layout.record(self.values)


def opened(
    rules: Rules, layout: Layout, known: Population | None, arrays: ArrayRecord, names: Sequence[str]
) -> Training:
    """The training with this model to send and with these clients online.

    The parameters of the checkpoint stay if the model is what they are rounded to, in float16 for example.
    """
    try:
        values = layout.values(arrays)
        sent = layout.flat(values)
    except ValueError as reason:
        raise BadInput(f"the model that is sent is not the one that training began with: {reason}") from None
    population = enter(rules, known, names, sent)
    now = population.checkpoint
    if not np.array_equal(layout.flat(layout.cut(now.params)), sent):  # the app has changed the model itself
        population = population.at(now._replace(params=sent))
    return Training(population, layout, values)


def chosen(rules: Rules, population: Population, available: Ids) -> tuple[Population, Ids]:
    """Which of the available clients train: all, unless the rule selects, by the losses that they told last."""
    now, losses = population.checkpoint, population.clients.losses[available].astype(np.float32)
    train, state = rules.select(now, available, losses, population.weights)
    return population.at(now._replace(state=state)), train


def closed(
    rules: Rules, training: Training, replies: Mapping[int, Checked], asked: Asked
) -> tuple[Training, dict[int, str]]:
    """The training after a round with these replies, by position, and why the defence has refused some of them."""
    before, layout, values = training

    def heard(refused: Mapping[int, str]) -> Population:  # what the refused say of themselves does not count
        return _heard(rules, before, {k: reply for k, reply in replies.items() if k not in refused})

    population, sent = heard({}), layout.flat(values)
    positions, all_ = np.array(sorted(replies), np.int64), [replies[k] for k in sorted(replies)]
    complete = np.ones((len(all_), 1), np.bool_)
    starts = [asked.sent[k].params if asked.sent else sent for k in positions.tolist()]
    r = Round(
        before.checkpoint.t + 1, sent, positions, _updates(all_, starts, len(sent)), complete,
        population.clients.losses[positions].astype(np.float32), population.weights,
        rules.estimator.probs(before.checkpoint.belief), _work(all_), idle=asked.idle,
    )  # fmt: skip
    if asked.sent:
        ages = np.array([asked.sent[k].age for k in positions.tolist()], np.int64)
        r = r._replace(ages=ages, starts=np.stack(starts) if ages.any() else None)
    state, r, _, refused = play_out(before.state, rules, r, weigh=lambda refused: heard(refused).weights)
    population = heard(refused)
    good = [replies[k] for k in r.clients.tolist()]
    weights = population.clients.weights[r.clients].tolist()
    means = {s.name: averaged(s, [g.values[s.name] for g in good], weights) for s in layout.buffers if good}
    values = {**values, **means, **layout.cut(state.checkpoint.params)}
    return Training(population._replace(state=state), layout, values), refused


def _heard(rules: Rules, population: Population, replies: Mapping[int, Checked]) -> Population:
    """The population after these replies; with a defence no client makes itself much heavier than usual."""
    positions = np.array(sorted(replies), np.int64)
    good = [replies[k] for k in sorted(replies)]
    heard = population.heard(positions, [reply.weight for reply in good], [reply.loss for reply in good])
    if rules.defence is None:
        return heard
    fair = rules.defence.fair(heard.clients.weights)
    return heard._replace(clients=heard.clients._replace(weights=fair))


def _work(replies: Sequence[Checked]) -> Work | None:
    """How much the clients have trained, if all have told their steps; nobody tells samples and learning rates."""
    steps = np.array([reply.steps for reply in replies])
    if not np.isfinite(steps).all():
        return None
    return Work(steps.astype(np.int64), np.zeros(len(steps), np.int64), np.full(len(steps), np.nan))


def _updates(replies: Sequence[Checked], starts: Sequence[core.Array], d: int) -> core.Array:
    """(m, d) local minus sent."""
    updates = np.empty((len(replies), d), np.float32)
    for row, reply, start in zip(updates, replies, starts, strict=True):
        np.subtract(reply.params, start, out=row)
    return updates

"""A round of a Flower app: what is sent, who trains, and how the round closes; and the state that is saved."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord

from fedstale import core
from fedstale.core import BadInput, Ids, Work, require
from fedstale.defence import Defence
from fedstale.flower.arrays import Layout, averaged
from fedstale.flower.federation.protocol.arrays import Slot, Values
from fedstale.flower.federation.server.close import opened_round, play_out, with_ages
from fedstale.flower.federation.state.server_state import Rules
from fedstale.flower.population import Clients, Population, enter
from fedstale.flower.replies import Asked, Checked
from fedstale.lab.runs.codec import pack, unpack

FORMAT = 1  # of a saved state


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
    starts = [asked.sent[k].params if asked.sent else sent for k in positions.tolist()]
    r = opened_round(rules, before.checkpoint._replace(params=sent), positions, population.weights, asked.idle)
    losses = population.clients.losses[positions].astype(np.float32)
    r = r._replace(updates=_updates(all_, starts, len(sent)), losses=losses, work=_work(all_))
    if asked.sent:
        r = with_ages(r, (asked.sent[k].age for k in positions.tolist()), starts)
    state, r, _ = play_out(before.state, rules, r, weigh=lambda refused: heard(refused).weights)
    population = heard(r.refused)
    good = [replies[k] for k in r.clients.tolist()]
    weights = population.clients.weights[r.clients].tolist()
    means = {s.name: averaged(s, [g.values[s.name] for g in good], weights) for s in layout.buffers if good}
    values = {**values, **means, **layout.cut(state.checkpoint.params)}
    return Training(population._replace(state=state), layout, values), dict(r.refused)


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


def save(training: Training, rules: Rules) -> dict[str, Values]:
    """The training as arrays, for `np.savez`: `about` is JSON, the others are copies. Nothing is pickled."""
    arrays: dict[str, Values] = {}
    population, layout, values = training
    shape = pack((population.clients, population.checkpoint), "state", arrays)
    counts = pack(population.state.counts, "counts", arrays)
    arrays |= {f"model/{name}": x for name, x in values.items()}
    about = {
        "format": FORMAT, "rules": _described(rules), "slots": layout.slots, "names": population.names,
        "state": shape, "counts": counts,
    }  # fmt: skip
    return {"about": np.array(json.dumps(about))} | {name: np.array(x) for name, x in arrays.items()}


def load(state: Mapping[str, Values], rules: Rules) -> Training:
    """The training that was saved with the same rules."""
    try:
        about: dict[str, Any] = json.loads(str(state["about"]))
        found, mine = about["format"], _described(rules)
        require(found == FORMAT, f"the saved state has format {found}, this version reads {FORMAT}")
        saved = about["rules"]
        require(saved == mine, f"the saved state belongs to {saved}, this strategy has {mine}")
        return _loaded(state, about, rules)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"this is not the state of a Flower strategy: {type(error).__name__}: {error}") from None


def _loaded(state: Mapping[str, Values], about: dict[str, Any], rules: Rules) -> Training:
    slots = [Slot(name, dtype, tuple(shape), trained) for name, dtype, shape, trained in about["slots"]]
    names, layout = tuple(about["names"]), Layout(tuple(slots))
    values = {s.name: np.array(state[f"model/{s.name}"]) for s in slots}
    params = layout.flat(values)
    fresh = enter(rules, None, names, params).state
    like, tree = fresh.checkpoint, (Clients.empty(len(names)), fresh.checkpoint)
    read = lambda path: np.array(state[path])  # noqa: E731
    clients, checkpoint = unpack(about["state"], tree, "state", read)
    if checkpoint.defence is None:  # saved before there was a defence
        checkpoint = checkpoint._replace(defence=like.defence)
    told = unpack(about["counts"], fresh.counts, "counts", read) if "counts" in about else fresh.counts
    return Training(Population(names, clients, fresh._replace(checkpoint=checkpoint, counts=told)), layout, values)


def _described(rules: Rules) -> str:
    """The parts without the settings that have their default: a later version may have more of them."""
    judge = rules.defence and dataclasses.replace(rules.defence, root=None)  # whose samples may be others
    own = () if judge == Defence() else (judge or "no defence",)  # came later, and was the default
    return ", ".join(map(_settings, (rules.strategy, rules.plain, rules.server, *own)))


def _settings(part: object) -> str:
    if not dataclasses.is_dataclass(part):
        return str(part)
    values = [(f.name, repr(getattr(part, f.name)), repr(f.default)) for f in dataclasses.fields(part)]
    return f"{type(part).__name__}({', '.join(f'{name}={x}' for name, x, default in values if x != default)})"

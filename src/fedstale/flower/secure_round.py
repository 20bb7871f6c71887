"""How a round with secure aggregation is asked for and closed: the same rule, with sums in the place of updates."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord

from fedstale.core import Round, require
from fedstale.flower.federation.server.close import opened_round, play_out
from fedstale.flower.federation.state.server_state import Rules
from fedstale.flower.population import Population
from fedstale.flower.replies import Asked
from fedstale.flower.secure import Orders, Outcome, SecAgg, Told
from fedstale.flower.training import Training
from fedstale.memory.memory import at_clients
from fedstale.privacy.sums import Added, Received, Summed, Sums


class SecureGrid:
    """A grid that answers training messages by the four stages; everything else goes to the real one."""

    def __init__(self, grid: Any, strategy: Any) -> None:
        self.grid, self.strategy = grid, strategy

    def get_nodes(self) -> Any:
        return self.grid.get_nodes()

    def get_node_ids(self) -> Any:
        return self.grid.get_node_ids()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies; of training there are none, what came of it is at the strategy."""
        sent = list(messages)
        if not sent or sent[0].metadata.message_type.partition(".")[0] != "train":
            replies: list[Message] = self.grid.send_and_receive(sent, timeout=timeout)
            return replies
        self.strategy.exchange(self.grid, sent, timeout)
        return []


def secured(rules: Rules, secure: SecAgg | None) -> Rules:
    """The rules, whose strategy has its memory at the clients if aggregation is secure."""
    if secure is None:
        need = 'memory = "clients" needs secure=SecAgg(), and SecureMod in the ClientApp'
        require(not at_clients(rules.strategy), f"{need}, got {rules.strategy} without them")
        return rules
    hidden = "a defence judges single updates, which secure aggregation hides: leave it out"
    require(rules.defence is None, hidden)
    return rules._replace(strategy=Summed(rules.strategy, secure.ring, deployed=True))


def asked_orders(
    rules: Rules, training: Training, asked: Asked, told: Mapping[int, Told]
) -> tuple[Training, Orders]:
    """What clients are told that have told this, and the training in which memories begin anew if one was lost."""
    summed, population = rules.strategy, training.population
    assert isinstance(summed, Summed)
    state = population.checkpoint.state
    for node, reply in told.items():
        counted = int(state.counted[asked.nodes[node]])
        if counted and (reply["epoch"] != state.epoch or counted not in (reply["round"], reply["next-round"])):
            state = summed.forget(state, np.array([asked.nodes[node]]))
            break
    nodes, heard, r = _heard(rules, training, asked, {node: reply["weight"] for node, reply in told.items()})
    state = _weighed(state, heard)
    orders = dict(zip(nodes, summed.orders(state, r), strict=True))
    counted_at = dict(zip(nodes, state.counted[r.clients].tolist(), strict=True))
    population = population.at(population.checkpoint._replace(state=state))
    return training._replace(population=population), Orders(orders, counted_at, state.epoch)


def closed_secure(
    rules: Rules, training: Training, asked: Asked, outcome: Outcome
) -> tuple[Training, MetricRecord]:
    """The training after a round in which these sums came, and the mean metrics of its clients."""
    before, layout, values = training
    summed, d = rules.strategy, len(before.checkpoint.params)
    assert isinstance(summed, Summed)
    _, heard, r = _heard(rules, training, asked, outcome.weights)
    state = _weighed(before.checkpoint.state, heard)
    added, metrics = summed.nothing(d), MetricRecord({})
    if outcome.total is not None and summed.ring is not None:
        sums, change, numbers, clipped = summed.ring.decode(outcome.total, len(added.sums), len(added.change))
        j, v = len(added.numbers), sum(outcome.weights.values()) / state.mean
        added = Added(sums, change, numbers[:j], clipped)
        metrics = MetricRecord({name: float(x / v) for name, x in zip(outcome.names, numbers[j:], strict=True)})
    server = heard.at(before.checkpoint._replace(state=state)).state
    after, *_ = play_out(server, rules._replace(strategy=Received(summed, added)), r)
    values = {**values, **layout.cut(after.checkpoint.params)}
    return Training(heard._replace(state=after), layout, values), metrics


def _heard(
    rules: Rules, training: Training, asked: Asked, weights: Mapping[int, float]
) -> tuple[list[int], Population, Round]:
    """The nodes that have told these weights, in order, the population that has heard them, and their round."""
    nodes, population = sorted(weights, key=asked.nodes.__getitem__), training.population
    positions = np.array([asked.nodes[node] for node in nodes], np.int64)
    heard = population.heard(positions, [weights[node] for node in nodes], [np.nan] * len(nodes))
    now = population.checkpoint._replace(params=training.layout.flat(training.values))
    return nodes, heard, opened_round(rules, now, positions, heard.weights, asked.idle)


def _weighed(state: Sums, population: Population) -> Sums:
    """With the unit of these weights: a weight of `mean`, that of the first round, stays 1 for ever."""
    told = population.clients.weights
    known = told[np.isfinite(told)]
    if len(known) == 0:
        return state
    mean = state.mean or float(known.mean())
    total = float(np.where(np.isfinite(told), told, known.mean()).sum())
    return state._replace(unit=total / mean, mean=mean)

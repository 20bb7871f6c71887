"""fedstale's rules as a strategy for any Flower app: only the line that makes the strategy changes.

    from fedstale.flower import FedStale

    strategy = FedStale("auto", fraction_train=0.5)           # was: FedAvg(fraction_train=0.5)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=20, train_config=…)

The ClientApp, the configuration of clients, metrics and evaluation stay as they are.
"""

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Result

from fedstale.core import BadInput, Estimator, Mask, Server, Strategy, hooks_of, require
from fedstale.defence import Defence
from fedstale.flower.arrays import BUFFERS, Layout
from fedstale.flower.federation.protocol.arrays import Values
from fedstale.flower.federation.server.close import count
from fedstale.flower.federation.server.diagnostics import status, write_trace
from fedstale.flower.flights import Flights, Work
from fedstale.flower.population import Identities, enter, forget, rules
from fedstale.flower.replies import Asked, Keys, Sent, log, sound, unweighted, with_metrics
from fedstale.flower.reports import Report, participation, report_of
from fedstale.flower.secure import Exchange, Orders, Outcome, SecAgg, Told
from fedstale.flower.secure_round import SecureGrid, asked_orders, closed_secure, secured
from fedstale.flower.training import Training, chosen, closed, load, opened, save
from fedstale.flower.unsupported import LEGACY, refuse_app, refuse_privacy_wrapper
from fedstale.participation.clock import Pace
from fedstale.privacy.ledger import Privacy
from fedstale.simulate.servers import Sgd

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
Aggregate = Callable[[list[RecordDict], str], MetricRecord]


class Uneven(FedAvg):  # type: ignore[misc]  # flwr is not there where types are checked
    """Flower's FedAvg with another server rule: one for clients that come and go.

    `rule` is the name of a recipe (`fedstale list recipes`) or a strategy such as `fs.FedStale(beta=0.3)`, and
    `estimator` learns how often each client takes part (default: that of the recipe, or Intervals()). The arguments
    of FedAvg follow the rule and mean the same; `weighted_by_key` also gives a client's weight in the objective.

    `server` is what is done with a step. `buffers` are patterns of names of floating-point arrays that are not
    trained; they are averaged, as arrays of whole numbers are. `loss_key` and `steps_key` are the metrics with a
    client's training loss, by which CA-Fed selects, and with its local steps, which FedNova needs. A client that
    was not online for `forget_after` rounds is forgotten; by default none is. A `defence`, True or a Defence(),
    judges every update and refuses those of clients that lie. Training stops after `stop_after` rounds in a row in
    which replies came and none could be used; None lets it go on. The server calculates in float32, and every array
    keeps its dtype.

    With a `pace`, `Buffer(size, concurrency)` or `Ticks(seconds, concurrency)`, the server waits for nobody: it
    keeps so many nodes at work, and steps after so many arrivals or seconds. A defence is refused then.
    `record` is the folder of a store, in which `start` keeps a run as `fedstale run` does. With `secure`, a
    SecAgg(), the server learns sums of what clients send, and nothing else; their ClientApp has
    `mods=[SecureMod(rule)]`. With `privacy`, a Privacy(noise=…, epsilon=…), every step has noise, a ledger holds
    the ε of every client, and metrics of clients, which no noise covers, are dropped.
    """

    def __init__(
        self, rule: str | Strategy = "auto", fraction_train: float = 1.0, fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2, min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays", configrecord_key: str = "config",
        train_metrics_aggr_fn: Aggregate | None = None, evaluate_metrics_aggr_fn: Aggregate | None = None, *,
        estimator: str | Estimator | None = None, server: Server = Sgd(1.0), buffers: Sequence[str] = BUFFERS,
        loss_key: str = "train_loss", steps_key: str = "num-steps", forget_after: int | None = None,
        defence: Defence | bool | None = None, stop_after: int | None = 2, pace: Pace | None = None,
        record: Path | str | None = None, secure: SecAgg | None = None, privacy: Privacy | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes,
            weighted_by_key, arrayrecord_key, configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn,
        )  # fmt: skip
        both = "clients would have to add the noise, which is not built yet: leave out privacy or secure"
        require(privacy is None or secure is None, f"secure aggregation cannot be combined with privacy: {both}")
        self.rules = secured(rules(rule, estimator, server, defence, pace, privacy), secure)
        self.pace, self.secure = pace, secure
        many = f"the concurrency of a pace says how many nodes train: leave out fraction_train={fraction_train}"
        require(pace is None or fraction_train == 1, many)
        ok = not isinstance(buffers, str)
        require(ok, f'buffers must be a list of patterns such as ["*running_mean"], got {buffers!r}')
        for name, least in (("forget_after", forget_after), ("stop_after", stop_after)):
            require(least is None or least >= 1, f"{name} must be at least 1 round or None, got {least}")
        sums, budget = "what a client has in the sum of memories cannot be taken out", "would have its budget again"
        for one, other, why in (
            (pace, secure, "secure aggregation needs rounds: leave out pace or secure"),
            (record, secure, "a run tells of single clients: leave out record or secure"),
            (secure, forget_after, f"{sums}: secure needs forget_after=None"),
            (privacy, forget_after, f"a client that is forgotten {budget}: privacy needs forget_after=None"),
        ):
            require(one is None or other is None, why)
        self.buffers, self.forget_after, self.stop_after = tuple(buffers), forget_after, stop_after
        self.record, self.label = None if record is None else Path(record), str(rule)
        self._record: Any = None
        self.keys = Keys(weighted_by_key, loss_key, steps_key)
        self.reports: list[Report] = []  # of all rounds that this object has played
        self._training: Training | None = None
        self._asked: Asked | None = None
        self._flights: Flights | None = None  # with a pace
        self._began = time.monotonic()
        self._outcome: Outcome | None = None  # of the stages of secure aggregation
        self._identities = Identities()
        self._unusable = 0  # rounds in a row, up to the last one, in which replies came and none could be used
        self._weighted = True  # no round so far in which replies told no weights

    @property
    def report(self) -> Report | None:
        """What came of the last round."""
        return self.reports[-1] if self.reports else None

    @property
    def arrays(self) -> ArrayRecord | None:
        """The model after the last round, or None before the first."""
        return self._training.arrays if self._training else None

    def start(
        self, grid: Any, initial_arrays: ArrayRecord, num_rounds: int = 3, timeout: float = 3600,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:  # fmt: skip
        """Train as FedAvg does; raises BadInput if no update was ever used, so that the model is the first one."""
        self._began, self._flights = time.monotonic(), None if self.pace is None else Flights(grid, self.pace)
        link = self._flights or (grid if self.secure is None else SecureGrid(grid, self))
        with self._recording(num_rounds) as self._record:
            result: Result = super().start(
                link, initial_arrays, num_rounds, timeout, train_config, evaluate_config,
                None if evaluate_fn is None else partial(self._evaluated, evaluate_fn),
            )  # fmt: skip
            if self._training is not None and not np.isfinite(self._training.population.clients.weights).any():
                none = f"nothing was learned in {num_rounds} rounds, no update could be used"
                raise BadInput(f"{none}: {self._first()}")
            if self._record is not None and self._training is not None:
                self._record.finish(self._training)
        return result

    def _recording(self, rounds: int) -> AbstractContextManager[Any]:
        """Where the run is kept, if it is."""
        if self.record is None:
            return nullcontext()
        from fedstale.flower.record import recording  # the laboratory is slow to load

        return recording(self.record, self.label, self.rules, rounds, self._training)

    def _evaluated(self, evaluate: Evaluate, t: int, arrays: ArrayRecord) -> MetricRecord | None:
        found = evaluate(t, arrays)
        if found is not None and self._record is not None:
            self._record.evaluated(found)
        return found

    def initialize_parameters(self, client_manager: Any) -> None:
        """Refuse the legacy API of Flower, whose server asks a strategy for this first."""
        raise BadInput(LEGACY)

    def summary(self) -> None:
        """Log the rule and its estimator, and what FedAvg logs."""
        refuse_privacy_wrapper()
        log.info("\t├──> Rule: %s", self.rules.strategy)
        log.info("\t│\t└──Estimator: %s, server: %s", self.rules.plain, self.rules.server)
        log.info("\t│\t└──Defence against liars: %s", self.rules.defence)
        if self.pace is not None:
            log.info("\t│\t└──Pace: %s", self.pace)
        if self.rules.privacy is not None:
            log.info("\t│\t└──Privacy: %s", self.rules.privacy)
        elif hooks_of(self.rules.strategy).sensitivity is not None:
            none = "%s clips updates, but adds no noise and promises nothing without privacy=Privacy(noise=…)"
            log.warning(none, self.rules.strategy)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Sample clients as FedAvg does; a rule that selects, such as F3AST, chooses among them."""
        refuse_privacy_wrapper()
        self._asked = None
        if self.pace is not None:
            return self._open_step(server_round, arrays, config)
        messages = list(super().configure_train(self._round(server_round), arrays, config, grid))
        if not messages:
            return messages
        to = {message.metadata.dst_node_id: message for message in messages}
        names = self._identities.of(grid, to)
        training = self._opened(arrays, names)
        place = {name: k for k, name in enumerate(training.population.names)}
        available = np.array(sorted(place[names[node]] for node in to), np.int64)
        population, train = chosen(self.rules, training.population, available)
        nodes = {node: place[names[node]] for node in to if place[names[node]] in train}
        self._training = training._replace(population=population)
        self._asked = Asked(nodes, {node: to[node] for node in nodes}, np.setdiff1d(available, train))
        return list(self._asked.messages.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Close the round with the replies that are sound; the others are refused, with a reason that is logged."""
        training, asked, self._asked = self._training, self._asked, None
        if training is not None and self._flights is not None:
            training, asked = self._landed(training, self._flights)
        if training is None or asked is None:  # nobody was asked
            return None, None
        if self.secure is not None:
            return self._aggregate_sums(training, asked)
        came = self._with_weights(replies)
        refuse_app([message.error.reason if message.has_error() else "" for message in came])
        good, refused = sound(came, asked, training.layout, self.keys)
        unusable = not good and not all(message.has_error() for message in came)
        self._training, lies = closed(self.rules, training, good, asked)
        refused |= {str(node): lies[k] for node, k in asked.nodes.items() if k in lies}
        good = {k: reply for k, reply in good.items() if k not in lies}
        self._tell(asked, good, lies, refused, unusable)
        if self._record is not None:
            self._record.round(self.reports[-1], training, self._training, good)
        if not good:
            return self.arrays, None
        if self.rules.privacy is not None:  # no noise covers what clients tell of themselves
            return self.arrays, self._measured(MetricRecord({}))
        told = [reply.content for reply in good.values()]
        return self.arrays, self._measured(self.train_metrics_aggr_fn(told, self.weighted_by_key))

    def _open_step(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        """Open a step without rounds: nodes that are idle are sent this model until it is due."""
        flights = self._flights
        if flights is None:
            raise BadInput("a strategy with a pace is played by `start`, not round by round")
        flights.wait_for(self.min_available_nodes)
        self._training = self._opened(arrays, self._identities.of(flights, []))
        t = self._training.population.checkpoint.t
        content = self._content(arrays, config, self._round(server_round))
        flights.open(Work(content, t, self._training.layout.flat(self._training.values)))
        return []

    def _content(self, arrays: ArrayRecord, config: ConfigRecord, t: int) -> RecordDict:
        """What clients are sent, as by FedAvg."""
        settings = ConfigRecord({**config, "server-round": t})
        return RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: settings})

    def _landed(self, training: Training, flights: Flights) -> tuple[Training, Asked]:
        """The training with all clients that came since the last step, and what each of them was sent."""
        landed, now = flights.landed, training.population.checkpoint
        names = self._identities.of(flights, landed)
        population = enter(self.rules, training.population, [*names.values()], now.params)
        place = {name: k for k, name in enumerate(population.names)}
        nodes = {node: place[names[node]] for node in landed}
        versions = {nodes[node]: flight.version for node, (flight, _) in landed.items()}
        sent = {k: Sent(now.t - version, flights.params[version]) for k, version in versions.items()}
        messages = {node: flight.message for node, (flight, _) in landed.items()}
        return training._replace(population=population), Asked(nodes, messages, np.array([], np.int64), sent)

    def exchange(self, grid: Any, messages: Sequence[Message], timeout: float | None) -> None:
        """Play the stages of secure aggregation with the clients of these messages."""
        assert self.secure is not None
        assert self._training is not None
        assert self._asked is not None
        training, asked = self._training, self._asked

        def orders(told: Mapping[int, Told]) -> Orders:
            self._training, made = asked_orders(self.rules, training, asked, told)
            return made

        play = Exchange(self.secure, grid, timeout, repr(self.rules.strategy), self.weighted_by_key)
        self._outcome = play.run(messages, training.population.checkpoint.t + 1, orders)

    def _aggregate_sums(self, training: Training, asked: Asked) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Close the round with the sums that came."""
        outcome, self._outcome = self._outcome, None
        require(outcome is not None, "with secure aggregation a training is played by start(grid, arrays)")
        assert outcome is not None
        self._training, metrics = closed_secure(self.rules, training, asked, outcome)
        heard = [asked.nodes[node] for node in outcome.weights]
        lost = {str(node): f"error {why}" for node, why in outcome.lost.items() if node not in outcome.weights}
        self._tell(asked, heard, (), lost, False)
        if not heard:
            return self.arrays, None
        metrics["fedstale-clipped"] = self._training.population.checkpoint.state.clipped
        return self.arrays, self._measured(metrics)

    def _measured(self, metrics: MetricRecord) -> MetricRecord:
        """The metrics with the numbers of the report."""
        for name, value in self.reports[-1].measures.items():
            metrics[name] = value
        return metrics

    def trace(self, path: Path | str | None = None) -> Mask:
        """Who was heard in each round that this object has played, rounds × clients.

        With a path it is written as a CSV file, which `fedstale inspect`, `fedstale advise` and simulations read.
        """
        names, table = participation(self.reports)
        if path is not None:
            write_trace(Path(path), names, table)
        return table

    def status(self) -> dict[str, Any]:
        """What is known of every client after the last round: counts, p̂ with an interval, weight, staleness."""
        if self._training is None:
            return {"round": 0, "clients": []}
        population = self._training.population
        found = status(population.state, self.rules.estimator)
        rows = zip(population.names, found["clients"], strict=True)
        return {"round": found["round"], "clients": [row | {"client": name} for name, row in rows]}

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """As FedAvg does; after a restart the clients are told the round since the beginning.

        With a pace those are asked who have nothing else to do.
        """
        t = self._round(server_round) - 1 if self._training else server_round
        if self._flights is None:
            messages: Iterable[Message] = super().configure_evaluate(t, arrays, config, grid)
            return messages
        idle, content = self._flights.idle(), self._content(arrays, config, t)  # who is at work is not waited for
        some = random.sample(idle, math.ceil(self.fraction_evaluate * len(idle)))
        return [Message(content, dst_node_id=node, message_type="evaluate") for node in some]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As FedAvg does, without the replies whose metrics cannot be averaged."""
        usable = with_metrics(self._with_weights(replies), self.weighted_by_key)
        metrics: MetricRecord | None = super().aggregate_evaluate(server_round, usable)
        if metrics is not None and self._record is not None:
            self._record.evaluated(metrics)
        return metrics

    def state_dict(self) -> dict[str, Values]:
        """Everything that the next round depends on, as arrays: `np.savez(file, **strategy.state_dict())`."""
        if self._training is None or self._asked is not None:
            raise BadInput("a state can be saved after a round, not before the first one or during one")
        return save(self._training, self.rules)

    def load_state_dict(self, state: Mapping[str, Values]) -> None:
        """Continue from a saved state; give `strategy.arrays` to `start` as the initial arrays."""
        self._training, self._identities = load(state, self.rules), Identities(resumed=True)

    def _round(self, server_round: int) -> int:
        """The round since the beginning: Flower counts from 1 again after a restart."""
        return self._training.population.checkpoint.t + 1 if self._training else server_round

    def _opened(self, arrays: ArrayRecord, names: Mapping[int, str]) -> Training:
        if self._training is None:
            layout, private = Layout.of(arrays, self.buffers), self.rules.privacy is not None
            ok = not private or not layout.buffers
            require(ok, "privacy does not cover averaged buffers, such as BatchNorm's: use a model without them")
            return opened(self.rules, layout, None, arrays, [*names.values()])
        population, layout, _ = self._training
        self._identities.compare(population.names, {*names.values()})
        training = opened(self.rules, layout, population, arrays, [*names.values()])
        if self.forget_after is None:
            return training
        return training._replace(population=forget(self.rules, training.population, self.forget_after))

    def _with_weights(self, replies: Iterable[Message]) -> list[Message]:
        """The replies, with equal weights if most of them tell none."""
        came = list(replies)
        if unweighted(came, self.weighted_by_key) and self._weighted:
            self._weighted = False
            log.warning("the metrics of clients have no %r: all count the same", self.weighted_by_key)
        return came

    def _tell(
        self, asked: Asked, heard: Iterable[int], lies: Iterable[int], refused: Mapping[str, str], unusable: bool
    ) -> None:
        """Keep and log who was heard, refused and missing; raises BadInput if no reply could be used for long."""
        assert self._training is not None
        population, told, nodes = self._training.population, [*heard], asked.nodes
        silent = [k for node, k in nodes.items() if k not in told and str(node) not in refused]
        failed = {k for node, k in nodes.items() if refused.get(str(node), "").startswith("error ")}
        bad = {k for node, k in nodes.items() if str(node) in refused} - failed - {*told}
        ids = (np.array(sorted(some), np.int64) for some in (nodes.values(), told, bad))
        count(population.state, population.weights, *ids)
        ages = {population.names[k]: sent.age for k, sent in asked.sent.items() if k in told}
        report = report_of(population, self.rules, told, lies, refused, silent, unusable)
        self.reports.append(report._replace(seconds=time.monotonic() - self._began, ages=ages))
        t = population.checkpoint.t
        log.info("aggregate_train: %d replies used, %d refused, %d missing", len(told), len(refused), len(silent))
        for node, reason in refused.items():
            log.warning("round %d: the reply of node %s is refused: %s", t, node, reason)
        if refused and not told:
            log.error("round %d: no reply is used: %s", t, self._first())
        self._unusable = self._unusable + 1 if unusable else 0
        if self.stop_after is not None and self._unusable >= self.stop_after:
            rounds = f"{self._unusable} rounds in a row" if self._unusable > 1 else "a round"
            more = "stop_after=None goes on nevertheless"
            raise BadInput(f"in {rounds} no reply could be used: {self._first()}; {more}")

    def _first(self) -> str:
        """Why the first of the replies of the last round was refused."""
        refused = self.report.refused if self.report else {}
        return next((f"node {node}: {reason}" for node, reason in refused.items()), "no client has answered")


class FedStale(Uneven):
    """The strategy for a Flower app whose clients come and go: `FedStale("auto")` in the place of `FedAvg()`.

    The rule `auto` has nothing to tune; `fedstale list recipes` names the others. The arguments are Uneven's.
    """

"""What a client does with an order: the local training of `engines.Serial`, from the same named streams."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fedstale.core.abilities import HasSlots, buffered, keeps_own, runs_loops
from fedstale.core.local import Local
from fedstale.core.parts import require
from fedstale.core.protocols import Task
from fedstale.core.records import Array, Clients, Floats, Job, State
from fedstale.engines.serial import answer
from fedstale.flower.federation.client.own import OwnState
from fedstale.flower.federation.protocol.link import Body, Order, Packed
from fedstale.flower.federation.protocol.validation import STYPE, WIDE
from fedstale.tasks.local import drawn


class OneClient:
    """One client of a task, as a task that trains this client whatever number an order names."""

    def __init__(self, task: Task, client: int = 0) -> None:
        self.task, self.client, self.n, self.d = task, client, 1, task.d
        self.weights = np.ones(1, np.float32)
        self.slots = task.slots if isinstance(task, HasSlots) else ()
        self.keeper, self.own = buffered(task), keeps_own(task)
        self.keeps_own = self.own is not None
        self.initial_buffers = self.keeper.initial_buffers if self.keeper else np.zeros(0)

    def init(self, seed: int) -> Array:
        return self.task.init(seed)

    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Any]:
        return self.task.batches(self.client, local, rng)

    def round_batches(self, t: int, client: int, local: Local, rng: np.random.Generator) -> Iterator[Any]:
        return drawn(self.task, self.client, local, rng, t)

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        return self.task.gradient(params, self.client, batch)

    def load_buffers(self, buffers: Floats) -> None:
        assert self.keeper, "only a task with buffers is asked to load them"
        self.keeper.load_buffers(buffers)

    def read_buffers(self) -> Floats:
        return self.keeper.read_buffers() if self.keeper else self.initial_buffers

    def initial_state(self, seed: int) -> State:
        assert self.own, "only a task with parts that stay with the client is asked for them"
        return self.own.initial_state(seed)

    def enter(self, params: Array, state: State | None) -> Array:
        assert self.own, "only a task with parts that stay with the client is asked for them"
        return self.own.enter(params, state)

    def leave(self, whole: Array) -> dict[str, Any]:
        assert self.own, "only a task with parts that stay with the client is asked for them"
        return self.own.leave(whole)

    def run_loop(self, params: Array, client: int, local: Local, context: Any) -> tuple[Array, float | None]:
        return runs_loops(self.task).run_loop(params, self.client, local, context)

    def evaluate(
        self, params: Array, buffers: Floats | None = None, states: Clients | None = None
    ) -> Mapping[str, float]:
        if self.own:
            return self.own.evaluate(params, buffers, states)
        return self.keeper.evaluate(params, buffers) if self.keeper else self.task.evaluate(params)


def score_on_order(task: OneClient, order: Order, kept: OwnState | None = None) -> Body:
    """The reply to an order to evaluate: the loss, and the accuracy or -1, on the client's test samples.

    A client without test samples tells its training objective as its loss.
    """
    state = kept.before(order.run, order.t) if kept else None
    state = task.initial_state(order.seed) if task.own and state is None else state
    found = task.evaluate(order.params, order.buffers, None if state is None else Clients({task.client: state}))
    loss, accuracy = found.get("loss", math.nan), found.get("accuracy", math.nan)
    loss = found.get("objective", loss) if math.isnan(loss) else loss
    require(math.isfinite(loss), f"the task must evaluate a loss or an objective, got {dict(found)}")
    accuracy = -1.0 if math.isnan(accuracy) else accuracy
    data = np.array([accuracy], "<f4").tobytes()
    about = (order.t, order.client, order.token, order.run)
    return Body(*about, float(loss), "float32", (1,), STYPE, data)


def train_on_order(
    task: Task, order: Order, train: Callable[..., Any] | None = None, kept: OwnState | None = None
) -> Body:
    """The reply to an order; the batches are those of the stream of (seed, round, client).

    `train` is a training loop of the client's own, `kept` where its state is from round to round, if it has any.
    """
    own_part = keeps_own(task)
    need = "a client that keeps a part of the model or trains by a loop of its own needs a folder for its state"
    require(kept is not None or not (own_part or train), f"{need}: own=FOLDER in its node configuration, got none")
    drift, keeper = None if order.drift is None else order.drift[None], buffered(task)
    sent, own = 0 if order.buffers is None else len(order.buffers), len(keeper.initial_buffers) if keeper else 0
    need = f"the server must send the {own} numbers of the buffers that training changes, got {sent}"
    require(sent == own, f"{need}: let start return parameters and buffers, as of_module does")
    local = order.local if train is None else dataclasses.replace(order.local, train=train)
    state = kept.before(order.run, order.t) if kept else None
    state = own_part.initial_state(order.seed) if own_part and state is None else state
    states = None if state is None else {order.client: state}
    job = Job(order.params, np.array([order.client]), order.seed, order.t, local, drift, order.buffers, states)
    reply = answer(task, job, order.train)
    if kept and reply.states:
        kept.save(order.run, order.t, reply.states[order.client])
    update, loss, buffers = reply.updates[0], float(reply.losses[0]), None
    if reply.buffers is not None:
        buffers = Packed("float64", (own,), WIDE, reply.buffers[0].astype("<f8").tobytes())
    data = update.astype("<f4").tobytes()
    return Body(order.t, order.client, order.token, order.run, loss, "float32", update.shape, STYPE, data, buffers)

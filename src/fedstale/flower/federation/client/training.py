"""What a client does with an order: the local training of `engines.Serial`, from the same named streams."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core.abilities import HasSlots, buffered, keeps_own, runs_loops
from fedstale.core.local import Local
from fedstale.core.parts import require
from fedstale.core.protocols import Task
from fedstale.core.records import Array, Clients, Floats, Job, State
from fedstale.engines.serial import answer
from fedstale.flower.federation.protocol.arrays import packed
from fedstale.flower.federation.protocol.link import Body, Order
from fedstale.lab.runs.store import read_tree, write_tree
from fedstale.tasks.local import drawn

KEPT = 2  # rounds: a round that was void is asked for again, and begins where it began


class OneClient:
    """One client of a task, as a task that trains this client whatever number an order names."""

    def __init__(self, task: Task, client: int = 0) -> None:
        self.task, self.client, self.n, self.d, self.init = task, client, 1, task.d, task.init
        self.weights = np.ones(1, np.float32)
        self.slots = task.slots if isinstance(task, HasSlots) else ()
        self.keeper, self.own = buffered(task), keeps_own(task)
        if self.keeper:
            self.initial_buffers = self.keeper.initial_buffers
            self.load_buffers, self.read_buffers = self.keeper.load_buffers, self.keeper.read_buffers
        if self.own:
            self.keeps_own, self.initial_state = True, self.own.initial_state
            self.enter, self.leave = self.own.enter, self.own.leave

    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Any]:
        return self.task.batches(self.client, local, rng)

    def round_batches(self, t: int, client: int, local: Local, rng: np.random.Generator) -> Iterator[Any]:
        return drawn(self.task, self.client, local, rng, t)

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        return self.task.gradient(params, self.client, batch)

    def run_loop(self, params: Array, client: int, local: Local, context: Any) -> tuple[Array, float | None]:
        return runs_loops(self.task).run_loop(params, self.client, local, context)

    def evaluate(
        self, params: Array, buffers: Floats | None = None, states: Clients | None = None
    ) -> Mapping[str, float]:
        if self.own:
            return self.own.evaluate(params, buffers, states)
        return self.keeper.evaluate(params, buffers) if self.keeper else self.task.evaluate(params)


class OwnState:
    """A folder with what a client keeps to itself, after each of the last rounds that it trained in.

    Personal layers, the statistics of FedBN, the state of a training loop.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def before(self, run: str, t: int) -> State | None:
        """The client's state when round t of a run begins; None if it has not trained in this run."""
        earlier = [path for path in self._files(run) if _round(path) < t]
        return read_tree(earlier[-1], None) if earlier else None

    def save(self, run: str, t: int, state: State) -> None:
        """Keep the state after round t, and that of the round before."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_tree(self.folder / f"{run}.{t}.npz", state)
        late = [path for path in self._files(run) if _round(path) > t]  # of rounds that the server has lost since
        for path in [*late, *[p for p in self._files(run) if p not in late][:-KEPT]]:
            path.unlink()

    def _files(self, run: str) -> list[Path]:
        return sorted(self.folder.glob(f"{run}.*.npz"), key=_round)


def _round(path: Path) -> int:
    return int(path.stem.rpartition(".")[2])


def score_on_order(task: OneClient, order: Order, kept: OwnState | None = None) -> Body:
    """The reply to an order to evaluate: the loss, and the accuracy or -1, on the client's test samples.

    A client without test samples tells its training objective as its loss.
    """
    state = kept.before(order.run, order.t) if kept else None
    state = task.own.initial_state(order.seed) if task.own and state is None else state
    found = task.evaluate(order.params, order.buffers, None if state is None else Clients({task.client: state}))
    loss, accuracy = found.get("loss", math.nan), found.get("accuracy", math.nan)
    loss = found.get("objective", loss) if math.isnan(loss) else loss
    require(math.isfinite(loss), f"the task must evaluate a loss or an objective, got {dict(found)}")
    accuracy = -1.0 if math.isnan(accuracy) else accuracy
    return _body(order, float(loss), np.array([accuracy], np.float32))


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
    buffers = None if reply.buffers is None else reply.buffers[0]
    return _body(order, float(reply.losses[0]), reply.updates[0], buffers)


def _body(order: Order, loss: float, update: Array, buffers: Floats | None = None) -> Body:
    about = (order.t, order.client, order.token, order.run)
    return Body(
        *about, loss, packed(update.astype("<f4")), None if buffers is None else packed(buffers.astype("<f8"))
    )

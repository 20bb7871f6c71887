"""What a client does with an order: the local training of `engines.Serial`, from the same named streams."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedstale.core import Array, Floats, HasSlots, Job, Local, Task, buffered, keeps_own, require
from fedstale.engines.serial import answer
from fedstale.federation.protocol.link import Body, Order, Packed
from fedstale.federation.protocol.validation import STYPE, WIDE
from fedstale.tasks.local import drawn


class OneClient:
    """One client of a task, as a task that trains this client whatever number an order names."""

    def __init__(self, task: Task, client: int = 0) -> None:
        own = "a federation cannot train a task with parts that stay with the client (personal, buffers 'local')"
        require(keeps_own(task) is None, f"{own}, got {task!r}")
        self.task, self.client, self.n, self.d = task, client, 1, task.d
        self.weights = np.ones(1, np.float32)
        self.slots = task.slots if isinstance(task, HasSlots) else ()
        self.keeper = buffered(task)
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

    def evaluate(self, params: Array, buffers: Floats | None = None) -> Mapping[str, float]:
        return self.keeper.evaluate(params, buffers) if self.keeper else self.task.evaluate(params)


def train_on_order(task: Task, order: Order) -> Body:
    """The reply to an order; the batches are those of the stream of (seed, round, client)."""
    drift, keeper = None if order.drift is None else order.drift[None], buffered(task)
    sent, own = 0 if order.buffers is None else len(order.buffers), len(keeper.initial_buffers) if keeper else 0
    need = f"the server must send the {own} numbers of the buffers that training changes, got {sent}"
    require(sent == own, f"{need}: let start return parameters and buffers, as of_module does")
    job = Job(order.params, np.array([order.client]), order.seed, order.t, order.local, drift, order.buffers)
    reply = answer(task, job, order.train)
    update, loss, buffers = reply.updates[0], float(reply.losses[0]), None
    if reply.buffers is not None:
        buffers = Packed("float64", (own,), WIDE, reply.buffers[0].astype("<f8").tobytes())
    data = update.astype("<f4").tobytes()
    return Body(order.t, order.client, order.token, order.run, loss, "float32", update.shape, STYPE, data, buffers)

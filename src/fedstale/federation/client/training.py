"""What a client does with an order: the local training of `engines.Serial`, from the same named streams."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedstale.core import Array, HasSlots, Job, Local, Task
from fedstale.engines.serial import answer
from fedstale.federation.protocol.link import Body, Order
from fedstale.federation.protocol.validation import STYPE


class OneClient:
    """One client of a task, as a task that trains this client whatever number an order names."""

    def __init__(self, task: Task, client: int = 0) -> None:
        self.task, self.client, self.n, self.d = task, client, 1, task.d
        self.weights = np.ones(1, np.float32)
        self.slots = task.slots if isinstance(task, HasSlots) else ()

    def init(self, seed: int) -> Array:
        return self.task.init(seed)

    def batches(self, client: int, local: Local, rng: np.random.Generator) -> Iterator[Any]:
        return self.task.batches(self.client, local, rng)

    def gradient(self, params: Array, client: int, batch: Any) -> tuple[float, Array]:
        return self.task.gradient(params, self.client, batch)

    def evaluate(self, params: Array) -> Mapping[str, float]:
        return self.task.evaluate(params)


def train_on_order(task: Task, order: Order) -> Body:
    """The reply to an order; the batches are those of the stream of (seed, round, client)."""
    drift = None if order.drift is None else order.drift[None]
    job = Job(order.params, np.array([order.client]), order.seed, order.t, order.local, drift)
    updates, losses = answer(task, job, order.train)[:2]
    update, loss = updates[0], float(losses[0])
    data = update.astype("<f4").tobytes()
    return Body(order.t, order.client, order.token, order.run, loss, "float32", update.shape, STYPE, data)

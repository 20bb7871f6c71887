"""A grid without a network: Flower messages go to ClientApps, or to any function, in this process."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.grid import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedstale.core import Local
from fedstale.core.rng import stream
from fedstale.tasks.quadratic import Quadratic

Answer = Callable[[Message, Context], Message | list[Message] | None]  # None: the client does not answer


class Direct(Grid):
    """Nodes 1000, 1001, … hold partitions 0, 1, …; `online` lists the partitions that are there."""

    def __init__(self, n: int, answer: Answer, keys: bool = True) -> None:
        self.answer, self.online, self.keys, self.sent = answer, list(range(n)), keys, 0
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as Flower does for a ServerApp
        config = {"num-partitions": n}
        self.contexts = {k: Context(1, 1000 + k, {"partition-id": k} | config, RecordDict(), {}) for k in range(n)}

    def get_nodes(self) -> Iterable[NodeInfo]:
        key = {k: f"key {k}".encode() if self.keys else b"" for k in self.online}
        return [NodeInfo(node_id=1000 + k, public_key=key[k]) for k in self.online]

    def get_node_ids(self) -> Iterable[int]:
        return [node.node_id for node in self.get_nodes()]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies: list[Message] = []
        for message in messages:
            self.sent += 1
            message.metadata.__dict__["_message_id"] = message.metadata.message_id or f"m{self.sent}"
            k = message.metadata.dst_node_id - 1000
            given = self.answer(message, self.contexts[k])
            replies += given if isinstance(given, list) else [given] if given is not None else []
        return replies

    set_run = run = create_message = push_messages = pull_messages = None  # type: ignore[assignment]


def away(message: Message, reason: str = "away") -> Message:
    """The reply of a client that has failed."""
    return Message(Error(code=0, reason=reason), reply_to=message)


def reply(message: Message, arrays: dict[str, Any], metrics: dict[str, Any]) -> Message:
    """A reply as a ClientApp makes it."""
    record = ArrayRecord({name: a if isinstance(a, Array) else Array(np.asarray(a)) for name, a in arrays.items()})
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord(metrics)}), reply_to=message)


N, D = 6, 7
TASK = Quadratic.random(N, D, seed=3, noise=0.2)
LOCAL = Local(lr=0.05, steps=3)


def table(rounds: int, p: float = 0.5) -> np.ndarray[Any, Any]:
    """Who is there in each round; everybody is in the first."""
    there = np.random.default_rng(0).random((rounds, N)) < p
    there[0] = True
    return there


def quadratic(there: np.ndarray[Any, Any] | None = None, examples: Sequence[int] = (20,) * N) -> Answer:
    """A ClientApp that trains TASK as the engine Serial does; a client that is not there answers with an error."""

    def answer(message: Message, context: Context) -> Message:
        k, t = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        if there is not None and not there[t - 1, k]:
            return away(message)
        w = message.content["arrays"]["w"].numpy().copy()
        for batch in TASK.batches(k, LOCAL, stream(0, "local", t, k)):
            loss, gradient = TASK.gradient(w, k, batch)
            w -= np.float32(LOCAL.lr) * gradient
        return reply(message, {"w": w}, {"num-examples": examples[k], "train_loss": float(loss), "num-steps": 3})

    return answer


def start() -> ArrayRecord:
    """The model that training of TASK starts from."""
    return ArrayRecord({"w": Array(TASK.init(0))})

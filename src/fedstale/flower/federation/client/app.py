"""A Flower ClientApp from a model and its data.

    from fedstale.flower import client_app
    app = client_app(Net, my_loader)             # makes an nn.Module, and makes a DataLoader

For a fedstale task of which this client holds one part: `task_app(lambda context: (task, client))`.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstale.core import Task
from fedstale.flower.federation.client.own_memory import shared
from fedstale.flower.federation.client.training import OneClient, OwnState, score_on_order, train_on_order
from fedstale.flower.federation.protocol.messages import EVALUATE, LOSS, TRAIN, pack_body, unpack_order

if TYPE_CHECKING:  # torch is slow to load
    from fedstale.tasks.supervised import Treatment

Loader = Iterable[tuple[Any, Any]]  # batches of (inputs, targets)


def client_app(
    model: Any, data: Callable[[Context], Loader], loss: Any = None, ridge: float = 0.0,
    buffers: "Treatment" = "average", personal: Sequence[str] = (), train: Callable[..., Any] | None = None,
    test: Callable[[Context], Loader] | None = None,
) -> ClientApp:  # fmt: skip
    """A ClientApp that trains `model` on the samples of a loader; `loss` is that of Supervised, or cross entropy.

    The loader is read to its end once per message. How it shuffles and batches does not matter: batches are
    drawn from the named stream of the round, as in simulations. `buffers` and `personal` are those of Supervised,
    `train` is a loop of your own as in `Local(train=…)`. What stays with the client is in a folder that the node's
    configuration names as `own`; `fedstale federation join` makes one. `test(context)` makes a loader of samples
    that are not trained on, for `[round] evaluate`; without it, clients tell the loss of their training samples.
    """

    def own(context: Context) -> tuple[Task, int]:
        from fedstale.tasks.losses import cross_entropy
        from fedstale.tasks.supervised import Supervised

        held_out = None if test is None else [_whole(test(context))]
        settings: Any = {"loss": loss or cross_entropy, "ridge": ridge, "buffers": buffers, "personal": personal}
        return Supervised(model, [_whole(data(context))], test=held_out, **settings), 0

    return task_app(own, train)


def _whole(loader: Loader) -> tuple[Any, Any]:
    """All inputs and all targets of a loader."""
    x, y = (np.concatenate([np.asarray(batch) for batch in part]) for part in zip(*loader, strict=True))
    return x, y


def task_app(own: Callable[[Context], tuple[Task, int]], train: Callable[..., Any] | None = None) -> ClientApp:
    """A ClientApp that trains one client of a task; `own(context)` returns the task and the client's place.

    `train` is a loop of your own as in `Local(train=…)`.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        task, client = own(context)
        order = unpack_order(message.content, message.metadata.message_type, context.node_id)
        folder = context.node_config.get("own")
        kept = None if folder is None else OwnState(Path(str(folder)))
        mine = OneClient(task, client)
        body = score_on_order(mine, order, kept) if order.evaluate else train_on_order(mine, order, train, kept)
        if order.share is not None:
            body = shared(context, order, body)
        return Message(pack_body(body), reply_to=message)

    app.train(TRAIN.partition(".")[2])(answer)
    app.query(LOSS.partition(".")[2])(answer)
    app.query(EVALUATE.partition(".")[2])(answer)
    return app

"""Clients that come and go, in a simulation where Flower has all nodes online all the time."""

import random
from collections.abc import Callable

from flwr.app import Context, Error, Message

RARELY = 0.1  # how often the second half of the clients is there


def sometimes(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A mod of the ClientApp: a client that is away answers with an error instead of training."""
    k, n = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    config = message.content["config"]
    there = k < n // 2 or random.Random(f"{config['seed']} {config['server-round']} {k}").random() < RARELY
    return call_next(message, context) if there else Message(Error(code=0, reason="away"), reply_to=message)

"""What a client that keeps its own memory sends in the place of its update: what it adds to the server's sums."""

import json

import numpy as np
from flwr.app import Context

from fedstale.core import Floats, Splits, require
from fedstale.flower.federation.client.own_memory import read_memory, write_memory
from fedstale.flower.federation.protocol.arrays import Slot, decoded, packed
from fedstale.flower.federation.protocol.link import Body, Order
from fedstale.lab.spec import build
from fedstale.registry import STRATEGIES


def shared(context: Context, order: Order, body: Body) -> Body:
    """The reply whose update is replaced by what it adds; its next memory waits until the server has counted it.

    A client whose memory is lost says so by adding nothing: all memories begin anew then.
    """
    assert order.share is not None
    share, name = order.share, f"memory-{order.run}"
    rule, held = build(json.loads(share.rule), STRATEGIES, "strategy"), read_memory(context, name)
    require(isinstance(rule, Splits), f"the server's rule must be split for a memory at the clients, got {rule}")
    if not held.has(share.counted, share.epoch):
        return _with(body, np.zeros(0))
    update = decoded(body.update, Slot("update", "float32", order.params.shape, True))
    held = held.counted(share.counted, share.epoch)
    h, change = held.h if len(held.h) else np.zeros_like(update), np.zeros(0)
    said = rule.message(h, update, share.order)
    if said.memory is not None:
        change = share.order.weight * said.memory.astype(np.float64) - held.weight * h.astype(np.float64)
    write_memory(context, held.waiting(order.t, share.order.weight, said.memory), name)
    return _with(body, np.concatenate([said.sums, change, said.numbers]))


def _with(body: Body, numbers: Floats) -> Body:
    return body._replace(update=packed(np.zeros(0, "<f4")), buffers=packed(numbers.astype("<f8")))

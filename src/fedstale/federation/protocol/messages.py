"""Orders and replies as Flower records. Arrays travel as raw little-endian float32."""

import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedstale import core
from fedstale.experiments.spec import describe_local, make
from fedstale.federation.protocol.link import Body, Order
from fedstale.federation.protocol.validation import STYPE

WHO = "query.who"  # asks a node for its client number, in a federation without keys
TRAIN, LOSS = "train.fedstale", "query.loss"
ABOUT = ("t", "client", "token", "run")  # the fields of an order that its reply repeats


def pack_order(order: Order) -> RecordDict:
    """An order as the content of a message."""
    about = {name: getattr(order, name) for name in ABOUT} | {"seed": order.seed}
    arrays = {"params": _array(order.params)} | ({} if order.drift is None else {"drift": _array(order.drift)})
    config = ConfigRecord(about | {"local": json.dumps(describe_local(order.local))})
    return RecordDict({"order": config, "arrays": ArrayRecord(arrays)})


def unpack_order(content: RecordDict, kind: str, node: int) -> Order:
    """The order in a message; raises if the server sends something else."""
    config: Any = content.config_records["order"]
    arrays = content.array_records["arrays"]
    core.require(
        "local" in config, "the server runs another version of fedstale: its orders have no settings `local`"
    )
    local = make(core.Local, json.loads(str(config["local"])), "local")
    return Order(
        node, int(config["client"]), int(config["t"]), str(config["token"]), str(config["run"]),
        int(config["seed"]), local, _vector(arrays["params"]),
        _vector(arrays["drift"]) if "drift" in arrays else None, kind == TRAIN,
    )  # fmt: skip


def pack_body(body: Body) -> RecordDict:
    """A reply as the content of a message."""
    about = ConfigRecord({name: getattr(body, name) for name in ABOUT})
    update = Array(dtype=body.dtype, shape=tuple(body.shape), stype=body.stype, data=body.data)
    arrays, loss = ArrayRecord({"update": update}), MetricRecord({"loss": body.loss})
    return RecordDict({"reply": about, "loss": loss, "arrays": arrays})


def unpack_body(content: RecordDict) -> Body | None:
    """The fields of a reply, whatever their types are; None if the content is not built like a reply."""
    try:
        about, loss = content.config_records["reply"], content.metric_records["loss"]
        arrays = content.array_records["arrays"]
        names = (set(content), set(about), set(loss), set(arrays))
        if names != ({"reply", "loss", "arrays"}, set(ABOUT), {"loss"}, {"update"}):
            return None
        a = arrays["update"]
        return Body._make((*(about[name] for name in ABOUT), loss["loss"], a.dtype, a.shape, a.stype, a.data))
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


def _array(vector: core.Array) -> Array:
    data = np.ascontiguousarray(vector, "<f4").tobytes()
    return Array(dtype="float32", shape=tuple(vector.shape), stype=STYPE, data=data)


def _vector(array: Array) -> core.Array:
    vector: core.Array = np.frombuffer(array.data, "<f4").astype(np.float32)
    return vector

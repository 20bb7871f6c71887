"""Orders and replies as Flower records. Arrays travel as raw little-endian float32."""

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedstale import core
from fedstale.federation.protocol.link import Order
from fedstale.federation.protocol.validation import STYPE, Body

WHO = "query.who"  # asks a node for its client number, where nothing proves it
TRAIN, LOSS = "train.fedstale", "query.loss"


def pack_order(order: Order) -> RecordDict:
    local = order.local
    config = ConfigRecord(
        {
            "t": order.t, "client": order.client, "token": order.token, "run": order.run, "seed": order.seed,
            "lr": local.lr, "steps": local.steps, "batch": local.batch, "decay": local.decay, "prox": local.prox,
        }
    )  # fmt: skip
    arrays = {"params": _array(order.params)} | ({} if order.drift is None else {"drift": _array(order.drift)})
    return RecordDict({"order": config, "arrays": ArrayRecord(arrays)})


def unpack_order(content: RecordDict, kind: str, node: int) -> Order:
    """The order in a message; a server that sends something else is an error."""
    c: Any = content.config_records["order"]
    arrays = content.array_records["arrays"]
    local = core.Local(float(c["lr"]), int(c["steps"]), int(c["batch"]), float(c["decay"]), float(c["prox"]))
    return Order(
        node, int(c["client"]), int(c["t"]), str(c["token"]), str(c["run"]), int(c["seed"]), local,
        _vector(arrays["params"]), _vector(arrays["drift"]) if "drift" in arrays else None, kind == TRAIN,
    )  # fmt: skip


def pack_body(body: Body) -> RecordDict:
    about = ConfigRecord({"t": body.t, "client": body.client, "token": body.token, "run": body.run})
    update = Array(dtype=body.dtype, shape=tuple(body.shape), stype=body.stype, data=body.data)
    return RecordDict(
        {
            "reply": about,
            "loss": MetricRecord({"loss": body.loss}),
            "arrays": ArrayRecord({"update": update}),
        }
    )


def unpack_body(content: RecordDict) -> Body | None:
    """The fields of a reply, of whatever type they are; None if it is not made like one."""
    try:
        if set(content) != {"reply", "loss", "arrays"}:
            return None
        about, loss = content.config_records["reply"], content.metric_records["loss"]
        arrays = content.array_records["arrays"]
        if set(about) != {"t", "client", "token", "run"} or set(loss) != {"loss"} or set(arrays) != {"update"}:
            return None
        a = arrays["update"]
        return Body(
            about["t"],
            about["client"],
            about["token"],
            about["run"],
            loss["loss"],
            a.dtype,
            a.shape,
            a.stype,
            a.data,
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


def _array(vector: core.Array) -> Array:
    data = np.ascontiguousarray(vector, "<f4").tobytes()
    return Array(dtype="float32", shape=tuple(vector.shape), stype=STYPE, data=data)


def _vector(array: Array) -> core.Array:
    vector: core.Array = np.frombuffer(array.data, "<f4").astype(np.float32)
    return vector

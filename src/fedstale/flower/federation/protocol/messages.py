"""Orders and replies as Flower records. Arrays travel as raw little-endian float32, buffers as float64."""

import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedstale import core
from fedstale.flower.federation.protocol.link import Body, Order, Packed
from fedstale.flower.federation.protocol.validation import STYPE, WIDE
from fedstale.lab.spec import describe_local, make

WHO = "query.who"  # asks a node for its client number, in a federation without keys
TRAIN, LOSS, EVALUATE = "train.fedstale", "query.loss", "query.evaluate"
ABOUT = ("t", "client", "token", "run")  # the fields of an order that its reply repeats


def kind_of(order: Order) -> str:
    """The type of the message for an order."""
    return TRAIN if order.train else EVALUATE if order.evaluate else LOSS


def pack_order(order: Order) -> RecordDict:
    """An order as the content of a message."""
    about = {name: getattr(order, name) for name in ABOUT} | {"seed": order.seed}
    given = {"params": order.params, "drift": order.drift, "buffers": order.buffers}
    arrays = {name: _array(vector) for name, vector in given.items() if vector is not None}
    config = ConfigRecord(about | {"local": json.dumps(describe_local(order.local))})
    return RecordDict({"order": config, "arrays": ArrayRecord(arrays)})


def unpack_order(content: RecordDict, kind: str, node: int) -> Order:
    """The order in a message; raises if the server sends something else."""
    config: Any = content.config_records["order"]
    arrays = content.array_records["arrays"]
    other = "the server runs another version of fedstale: its orders have no settings `local`"
    core.require("local" in config, other)
    local = make(core.Local, json.loads(str(config["local"])), "local")
    return Order(
        node, int(config["client"]), int(config["t"]), str(config["token"]), str(config["run"]),
        int(config["seed"]), local, _vector(arrays["params"]),
        _vector(arrays["drift"]) if "drift" in arrays else None, kind == TRAIN,
        np.frombuffer(arrays["buffers"].data, "<f8").astype(np.float64) if "buffers" in arrays else None,
        kind == EVALUATE,
    )  # fmt: skip


def pack_body(body: Body) -> RecordDict:
    """A reply as the content of a message."""
    about = ConfigRecord({name: getattr(body, name) for name in ABOUT})
    packed = {"update": Packed(body.dtype, body.shape, body.stype, body.data), "buffers": body.buffers}
    arrays = {name: Array(p.dtype, tuple(p.shape), p.stype, p.data) for name, p in packed.items() if p}
    loss = MetricRecord({"loss": body.loss})
    return RecordDict({"reply": about, "loss": loss, "arrays": ArrayRecord(arrays)})


def unpack_body(content: RecordDict) -> Body | None:
    """The fields of a reply, whatever their types are; None if the content is not built like a reply."""
    try:
        about, loss = content.config_records["reply"], content.metric_records["loss"]
        arrays = content.array_records["arrays"]
        names = (set(content), set(about), set(loss), set(arrays) | {"buffers"})
        if names != ({"reply", "loss", "arrays"}, set(ABOUT), {"loss"}, {"update", "buffers"}):
            return None
        buffers = _packed(arrays["buffers"]) if "buffers" in arrays else None
        fields = (*(about[name] for name in ABOUT), loss["loss"], *_packed(arrays["update"]))
        return Body._make((*fields, buffers))
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


def _packed(a: Array) -> Packed:
    return Packed(a.dtype, a.shape, a.stype, a.data)


def _array(vector: core.Array | core.Floats) -> Array:
    dtype, kind, stype = ("float32", "<f4", STYPE) if vector.dtype == np.float32 else ("float64", "<f8", WIDE)
    data = np.ascontiguousarray(vector, kind).tobytes()
    return Array(dtype=dtype, shape=tuple(vector.shape), stype=stype, data=data)


def _vector(array: Array) -> core.Array:
    vector: core.Array = np.frombuffer(array.data, "<f4").astype(np.float32)
    return vector

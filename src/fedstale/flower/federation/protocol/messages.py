"""Orders and replies as Flower records. Parameters and updates are float32, buffers float64."""

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedstale import core
from fedstale.flower.federation.protocol.arrays import packed
from fedstale.flower.federation.protocol.link import Body, Order, Share
from fedstale.lab.spec import describe_local, make

TRAIN, LOSS, EVALUATE = "train.fedstale", "query.loss", "query.evaluate"
ABOUT = ("t", "client", "token", "run")  # the fields of an order that its reply repeats


def kind_of(order: Order) -> str:
    """The type of the message for an order."""
    return TRAIN if order.train else EVALUATE if order.evaluate else LOSS


def pack_order(order: Order) -> RecordDict:
    """An order as the content of a message."""
    about = {name: getattr(order, name) for name in ABOUT} | {"seed": order.seed}
    share = order.share
    centre = None if share is None else share.order.centre
    given = {"params": order.params, "drift": order.drift, "buffers": order.buffers, "centre": centre}
    arrays = {name: Array(*packed(vector)) for name, vector in given.items() if vector is not None}
    told = {} if share is None else {"share": json.dumps(share._replace(order=share.order._replace(centre=None)))}
    config = ConfigRecord(about | {"local": json.dumps(describe_local(order.local))} | told)
    return RecordDict({"order": config, "arrays": ArrayRecord(arrays)})


def unpack_order(content: RecordDict, kind: str, node: int) -> Order:
    """The order in a message; raises if the server sends something else."""
    config: Any = content.config_records["order"]
    vectors = {name: array.numpy() for name, array in content.array_records["arrays"].items()}
    other = "the server runs another version of fedstale: its orders have no settings `local`"
    core.require("local" in config, other)
    local = make(core.Local, json.loads(str(config["local"])), "local")
    return Order(
        node, int(config["client"]), int(config["t"]), str(config["token"]), str(config["run"]),
        int(config["seed"]), local, vectors["params"], vectors.get("drift"), kind == TRAIN, vectors.get("buffers"),
        kind == EVALUATE, _share(config, vectors.get("centre")),
    )  # fmt: skip


def _share(config: Any, centre: core.Array | None) -> Share | None:
    if "share" not in config:
        return None
    rule, numbers, *more = json.loads(str(config["share"]))
    return Share(rule, core.Order(*numbers)._replace(centre=centre), *more)


def pack_body(body: Body) -> RecordDict:
    """A reply as the content of a message."""
    about = ConfigRecord({name: getattr(body, name) for name in ABOUT})
    given = {"update": body.update, "buffers": body.buffers}
    arrays = {name: Array(*fields) for name, fields in given.items() if fields}
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
        said = [about[name] for name in ABOUT]
        return Body._make([*said, loss["loss"], arrays["update"], arrays.get("buffers")])
    except (KeyError, TypeError, AttributeError, ValueError):
        return None

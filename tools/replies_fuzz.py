"""Hostile replies by the thousand, against the strategy FedStale: `python -m tools.replies_fuzz`.

Every round most clients send replies that are wrong in some way: names, shapes, types, headers, NaN, weights,
metrics, pickles, zip bombs, errors, foreign senders, second replies. The seed is drawn anew each run and printed,
so that a failure can be repeated. What must hold: no crash, only honest clients are heard, and a finite model.
"""

import io
import logging
import math
import pickle
import re
import secrets
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedstale.core import require
from fedstale.flower import FedStale
from tests.flower.direct import Direct, away, reply

HONEST, LIARS = 12, 60
LOUD = HONEST + 5  # liars from here on never shout: that would make the loud ones a majority of the clients
Rng = np.random.Generator
Lie = Callable[[RecordDict, Rng], Any]  # changes the content of an honest reply
MODEL: dict[str, npt.NDArray[Any]] = {
    "layer.weight": np.ones((3, 4), np.float32), "layer.bias": np.ones(4, np.float16), "scale": np.array(1.0),
    "bn.running_var": np.ones(5, np.float32), "bn.num_batches_tracked": np.array(3),
}  # fmt: skip
WEIGHTS = (0, -1, 0.0, math.nan, math.inf, -math.inf, 1e300, [1], [])
FLOATS = [name for name, a in MODEL.items() if a.dtype.kind == "f"]
METRICS = {"num-examples": 10, "train_loss": 0.5, "per-class": [0.1, 0.2]}


class Bomb:
    """A pickle of this says so when it is opened."""

    opened = False

    def __reduce__(self) -> Any:
        return (setattr, (Bomb, "opened", True))


def _zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("layer.npy", bytes(1 << 22))
    return buffer.getvalue()


ZIP, PICKLE = _zip_bomb(), pickle.dumps(Bomb())


def _npy(shape: str, descr: str = "'<f4'", body: bytes = b"") -> bytes:
    """A .npy file whose header says what it likes."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


def _one(rng: Rng, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _put(value: float) -> Lie:
    def lie(content: RecordDict, rng: Rng) -> None:
        name = _one(rng, *FLOATS)
        x = content["arrays"][name].numpy().copy()
        x.reshape(-1)[int(rng.integers(x.size))] = value
        content["arrays"][name] = Array(x)

    return lie


def _without(record: Any, name: str) -> None:
    del record[name]


def _array(lie: Callable[[Array, Rng], Any]) -> Lie:
    """A lie about one array, changed in place."""
    return lambda c, rng: lie(c["arrays"][_one(rng, *MODEL)], rng)


def _bytes(make: Callable[[bytes, Rng], bytes]) -> Lie:
    """A lie in the bytes of one array."""
    return _array(lambda a, rng: setattr(a, "data", make(a.data, rng)))


def _become(a: Array, values: np.ndarray[Any, Any]) -> None:
    a.__dict__.update(Array(values).__dict__)


def _other_type(a: Array, rng: Rng) -> None:
    floating = a.numpy().dtype.kind == "f"  # then any other floating-point type is taken
    kinds = ("i4", "c8", "bool") if floating else ("f4", "f8", "i4", "c8", "bool")
    _become(a, a.numpy().astype(_one(rng, *kinds)))


def _big_endian(a: Array, rng: Rng) -> None:
    x, buffer = a.numpy(), io.BytesIO()
    np.save(buffer, x.astype(x.dtype.newbyteorder(">")))
    a.data = buffer.getvalue()


def _swapped(c: RecordDict, rng: Rng) -> None:
    c["arrays"] = ArrayRecord(dict(zip(MODEL, [*c["arrays"].values()][::-1], strict=True)))


def _renamed(c: RecordDict, rng: Rng) -> None:
    name = _one(rng, *MODEL)
    c["arrays"][name + "x"] = c["arrays"].pop(name)


LIES: dict[str, Lie] = {
    "nan": _put(math.nan), "infinity": _put(math.inf), "minus infinity": _put(-math.inf),
    "float64's range": lambda c, rng: _become(c["arrays"]["scale"], np.array(10.0 ** rng.uniform(39, 300))),
    "float64's range in a buffer": lambda c, rng: _become(
        c["arrays"]["bn.running_var"], np.full(5, 10.0 ** rng.uniform(39, 300))
    ),
    "missing": lambda c, rng: _without(c["arrays"], _one(rng, *MODEL)),
    "extra": lambda c, rng: c["arrays"].__setitem__(secrets.token_hex(4), Array(np.ones(2))),
    "renamed": _renamed, "swapped": _swapped,
    "shape": _array(lambda a, rng: _become(a, np.ones((*a.shape, 2), a.dtype))),
    "stated shape": _array(lambda a, rng: setattr(a, "shape", _one(rng, (-1,), (10**12,), (7, 7)))),
    "dtype": _array(_other_type), "byte order": _array(_big_endian),
    "stated dtype": _array(lambda a, rng: setattr(a, "dtype", _one(rng, "object", "O", "", "int16", "x" * 5000))),
    "stype": _array(lambda a, rng: setattr(a, "stype", _one(rng, "", "torch", "pickle"))),
    "cut": _bytes(lambda data, rng: data[: int(rng.integers(len(data)))]),
    "longer": _bytes(lambda data, rng: data + bytes(int(rng.integers(1, 9999)))),
    "garbage": _bytes(lambda data, rng: rng.bytes(int(rng.integers(300)))),
    "header": _bytes(lambda data, rng: data[:10] + rng.bytes(60) + data[70:]),
    "huge header": _bytes(lambda data, rng: _npy("(" + "1," * 9000 + ")")),
    "deep header": _bytes(lambda data, rng: _npy("(" * 3000 + ")" * 3000)),
    "huge shape": _bytes(lambda data, rng: _npy(_one(rng, "(10**12,)", "(1000000000000,)", "(-5,)"))),
    "object array": _bytes(lambda data, rng: _npy("(3, 4)", "'|O'", PICKLE)),
    "zip bomb": _bytes(lambda data, rng: ZIP), "pickle": _bytes(lambda data, rng: PICKLE),
    "no arrays": lambda c, rng: _without(c, "arrays"),
    "two arrays": lambda c, rng: c.__setitem__("more", c["arrays"]),
    "empty arrays": lambda c, rng: c.__setitem__("arrays", ArrayRecord()),
    "no metrics": lambda c, rng: _without(c, "metrics"),
    "two metrics": lambda c, rng: c.__setitem__("more", c["metrics"]),
    "no weight": lambda c, rng: _without(c["metrics"], "num-examples"),
    "weight": lambda c, rng: c["metrics"].__setitem__("num-examples", _one(rng, *WEIGHTS)),
    "other metrics": lambda c, rng: c["metrics"].__setitem__("surprise", 1.0),
    "fewer metrics": lambda c, rng: _without(c["metrics"], _one(rng, "train_loss", "per-class")),
    "list for a number": lambda c, rng: c["metrics"].__setitem__("train_loss", [0.5]),
    "longer list": lambda c, rng: c["metrics"].__setitem__("per-class", [0.1] * int(rng.integers(3, 9))),
    "renamed metrics": lambda c, rng: c.__setitem__("measures", c.pop("metrics")),
    "nothing": lambda c, rng: c.clear(),
}  # fmt: skip
SHOUTS: dict[str, Lie] = {
    "shout": lambda c, rng: _become(c["arrays"]["scale"], np.array(10.0 ** rng.uniform(3, 30))),
    "shout down": lambda c, rng: _become(c["arrays"]["scale"], np.array(-(10.0 ** rng.uniform(3, 30)))),
}  # sound but for their norm
BAD_WEIGHT = ("no metrics", "two metrics", "no weight", "weight")
OTHER_METRICS = ("other metrics", "longer list")


class Clients:
    """Honest clients and liars; counts the lies."""

    def __init__(self, seed: int) -> None:
        self.rng, self.sent = np.random.default_rng(seed), Counter[str]()

    def __call__(self, message: Message, context: Context) -> Message | list[Message] | None:
        honest, k = self._reply(message), int(context.node_config["partition-id"])
        if message.metadata.message_type == "evaluate":
            return self._evaluated(message, k)
        if k < HONEST:
            return honest
        lies = LIES | SHOUTS if k < LOUD else LIES
        name = _one(self.rng, "error", "foreign", "unknown", "twice", *lies)
        self.sent[name] += 1
        if name == "error":
            return away(message, "x" * int(self.rng.integers(10**4)))
        if name in ("foreign", "unknown"):
            honest.metadata.__dict__["_src_node_id"] = (
                1000 + int(self.rng.integers(HONEST)) if name == "foreign" else 5
            )
            return honest
        if name == "twice":
            self.sent[name] += 1
            return [self._lie(message), self._lie(message)]
        lies[name](honest.content, self.rng)
        return honest

    def _lie(self, message: Message) -> Message:
        made = self._reply(message)
        _one(self.rng, *LIES.values())(made.content, self.rng)
        return made

    def _reply(self, message: Message) -> Message:
        sent = {name: a.numpy().astype(MODEL[name].dtype) for name, a in message.content["arrays"].items()}
        return reply(message, sent | {"layer.weight": sent["layer.weight"] + np.float32(0.01)}, METRICS)

    def _evaluated(self, message: Message, k: int) -> Message:
        made = reply(message, {}, METRICS)
        if k >= HONEST:  # few tell the same lie: what most replies have is what counts
            LIES[_one(self.rng, *(BAD_WEIGHT if k % 10 else OTHER_METRICS))](made.content, self.rng)
        return made


def fuzz(replies: int, seed: int) -> dict[str, Any]:
    """At least so many hostile replies; raises if anything that must hold does not."""
    clients, reasons = Clients(seed), Counter[str]()
    grid, strategy = Direct(HONEST + LIARS, clients), FedStale("auto", defence=True)
    arrays, t = ArrayRecord({name: Array(a) for name, a in MODEL.items()}), 0
    grid.online = [*range(HONEST, HONEST + LIARS), *range(HONEST)]  # liars answer first
    while sum(clients.sent.values()) < replies:
        t += 1
        messages = strategy.configure_train(t, arrays, ConfigRecord(), grid)
        arrays, metrics = strategy.aggregate_train(t, grid.send_and_receive(messages))
        honest = {strategy._identities.names[1000 + k] for k in range(HONEST)}
        require({*strategy.report.heard} == honest, f"round {t}: a lie was believed: {strategy.report}")
        require(metrics is not None and metrics["train_loss"] == 0.5, f"round {t}: the metrics are {metrics}")
        finite = all(np.isfinite(a.numpy()).all() for a in arrays.values())
        kinds = {name: (str(a.dtype), a.shape) for name, a in MODEL.items()}
        same = {name: (a.dtype, tuple(a.shape)) for name, a in arrays.items()} == kinds
        require(finite and same, f"round {t}: the model is damaged")
        messages = strategy.configure_evaluate(t, arrays, ConfigRecord(), grid)
        own = {name: x for name, x in metrics.items() if not name.startswith("fedstale-")}
        found = strategy.aggregate_evaluate(t, grid.send_and_receive(messages))
        require(found is not None and dict(found) == own, "evaluation was bent")
        reasons.update(re.sub(r"'.*?'|, got.*|shape.*|:.*", "…", why) for why in strategy.report.refused.values())
    require(not Bomb.opened, "a pickle was opened")
    return {"replies": sum(clients.sent.values()), "rounds": t, "reasons": dict(reasons.most_common())}


def main(replies: int = 10_000, seed: int | None = None) -> None:
    chosen = secrets.randbelow(2**32) if seed is None else seed
    print(f"seed {chosen}", flush=True)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    began = time.monotonic()
    found = fuzz(replies, chosen)
    print(
        f"{found['replies']} hostile replies in {found['rounds']} rounds, {time.monotonic() - began:.1f} s: refused"
    )
    for reason, count in found["reasons"].items():
        print(f"  {count:6d}  {reason}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

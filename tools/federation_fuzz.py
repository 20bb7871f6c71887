"""Hostile replies by the thousand, against the real round loop: `python -m tools.federation_fuzz`.

Every round some of the clients lie: wrong shapes and types, NaN, huge norms, zip bombs, pickles, foreign
numbers, old rounds, replays, floods. The seed is drawn anew each run and printed, so that a failure can be
repeated. What must hold: no crash, a finite state, the roster as it was, and every lie counted.
"""

import io
import logging
import math
import pickle
import secrets
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.core import require
from fedstale.flower.federation import settings
from fedstale.flower.federation.protocol.arrays import Slot, decoded, packed
from fedstale.flower.federation.protocol.link import Arrival, Body, Fault, Order
from fedstale.flower.federation.server.rounds import Server
from fedstale.flower.federation.state.resize import arrays_of
from fedstale.tasks.quadratic import Quadratic
from tests.flower.federation.inprocess import NODES, InProcess, roster_of

HONEST, LIARS, D = 12, 60, 50
LOUD = HONEST + 5  # liars from here on never shout: that would make the loud ones a majority of the clients
Lie = Callable[[Body, np.random.Generator], Body]


class Bomb:
    """A pickle of this says so when it is opened."""

    opened = False

    def __reduce__(self) -> Any:
        return (setattr, (Bomb, "opened", True))


def _zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("update.npy", bytes(1 << 22))
    return buffer.getvalue()


ZIP, PICKLE = _zip_bomb(), pickle.dumps(Bomb())
WEIRD = [None, True, -1, 2**70, 1.5, math.nan, math.inf, "1", b"", "x" * 5000, [], [[]], {}, (1, 2), object()]


def _any(rng: np.random.Generator) -> Any:
    return WEIRD[int(rng.integers(len(WEIRD)))]


def _one(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _floats(body: Body, change: Callable[[np.ndarray[Any, Any]], Any]) -> Body:
    values = _values(body)
    with np.errstate(over="ignore"):
        change(values)
    return body._replace(update=packed(values))


def _values(body: Body) -> np.ndarray[Any, Any]:
    return decoded(body.update, Slot("update", "float32", (D,), True)).copy()


def _field(name: str, make: Callable[[Any, np.random.Generator], Any]) -> Lie:
    """A lie about one field of the update; it is made from the honest one."""
    return lambda b, rng: b._replace(update=b.update._replace(**{name: make(getattr(b.update, name), rng)}))


def _put(value: float) -> Lie:
    return lambda b, rng: _floats(b, lambda v: v.__setitem__(int(rng.integers(len(v))), value))


def _sized(dtype: str) -> Lie:
    return lambda b, rng: b._replace(update=b.update._replace(data=packed(_values(b).astype(dtype)).data))


LIES: dict[str, Lie] = {
    "nan": _put(math.nan),
    "infinity": _put(math.inf),
    "minus infinity": _put(-math.inf),
    "huge norm": lambda b, rng: _floats(b, lambda v: v.__imul__(np.float32(10.0 ** rng.uniform(3, 30)))),
    "largest floats": lambda b, rng: _floats(b, lambda v: v.fill(np.finfo(np.float32).max)),
    "too short": _field("data", lambda data, rng: data[: int(rng.integers(len(data)))]),
    "too long": _field("data", lambda data, rng: data + bytes(int(rng.integers(1, 9999)))),
    "double": _sized("<f8"),
    "half": _sized("<f2"),
    "dtype": _field("dtype", lambda _, rng: _one(rng, "float64", "object", "O", "<f4", ">f4", _any(rng))),
    "stype": _field("stype", lambda _, rng: _one(rng, "fedstale/f4", "torch", _any(rng))),
    "shape": _field("shape", lambda _, rng: _one(rng, (), (D, 1), (D + 1,), (-D,), (float(D),), _any(rng))),
    "data": _field("data", lambda _, rng: _any(rng)),
    "bytearray": _field("data", lambda data, rng: bytearray(data)),
    "zip bomb": _field("data", lambda _, rng: ZIP),
    "pickle": _field("data", lambda _, rng: PICKLE),
    "npy of objects": _field("data", lambda _, rng: b"\x93NUMPY\x01\x00" + PICKLE),
    "no array": lambda b, rng: b._replace(update=_any(rng)),
    "foreign number": lambda b, rng: b._replace(client=int(rng.integers(HONEST))),
    "unknown number": lambda b, rng: b._replace(client=int(rng.integers(100, 10**6))),
    "number's type": lambda b, rng: b._replace(client=_one(rng, float(b.client), np.int64(b.client))),
    "old round": lambda b, rng: b._replace(t=b.t - 1 - int(rng.integers(5))),
    "future round": lambda b, rng: b._replace(t=b.t + 1 + int(rng.integers(10**6))),
    "round's type": lambda b, rng: b._replace(t=_any(rng)),
    "token": lambda b, rng: b._replace(token=_one(rng, secrets.token_hex(16), _any(rng))),
    "run": lambda b, rng: b._replace(run=_one(rng, "another", _any(rng))),
    "loss": lambda b, rng: b._replace(loss=_one(rng, math.nan, math.inf, -math.inf, 1e300, "0", None, 3)),
    "buffers": lambda b, rng: b._replace(buffers=_one(rng, packed(np.zeros(1)), 3)),
    "everything": lambda b, rng: Body._make(_any(rng) for _ in b),
    "nothing": lambda b, rng: Body._make([None] * 7),
    "swapped fields": lambda b, rng: Body._make(b[k] for k in np.roll(np.arange(len(b)), rng.integers(1, 6))),
}  # fmt: skip
SHOUTS = ("huge norm", "largest floats")  # sound but for their norm


class Liars:
    """What the dishonest clients send instead of their honest reply."""

    def __init__(self, seed: int) -> None:
        self.rng, self.sent, self.old = np.random.default_rng(seed), Counter[str](), list[Body]()

    def __call__(self, order: Order, body: Body) -> Sequence[Arrival] | None:
        if order.client < HONEST:
            return None
        lies = [name for name in LIES if order.client < LOUD or name not in SHOUTS]
        name = _one(self.rng, "flood", "replay", "wrong sender", "no body", "error", *lies)
        self.sent[name] += 1
        self.old = [*self.old[-50:], body]
        if name == "flood":
            self.sent[name] += 4
            flood = [LIES[_one(self.rng, *lies)](body, self.rng) for _ in range(4)]
            return [Arrival("" if k % 2 else f"stray {k}", order.node, lie) for k, lie in enumerate(flood)]
        if name == "replay":
            return [Arrival("", order.node, self.old[0] if len(self.old) > 1 else Body._make([None] * 7))]
        if name == "wrong sender":
            return [Arrival("", NODES + int(self.rng.integers(HONEST)), body)]
        if name in ("no body", "error"):
            return [
                Arrival("", order.node, None, None if name == "no body" else Fault.rejected, "the client failed")
            ]
        return [Arrival("", order.node, LIES[name](body, self.rng))]


def fuzz(replies: int, seed: int, folder: Path) -> dict[str, Any]:
    """At least so many hostile replies; raises if anything that must hold does not."""
    task, liars, n = Quadratic.random(HONEST + LIARS, D, noise=0.1), Liars(seed), HONEST + LIARS
    raw = {"name": "fuzz", "rounds": 10**9, "local": {"lr": 0.05}, "round": {"deadline": 2.0}}
    roster = roster_of(range(n))
    server = Server(settings.check(folder, raw), InProcess(task, range(n), liars), lambda: roster, task.init)
    reasons, sent, honest = Counter[str](), 0, 0
    for closed in server.play():
        sent = sum(liars.sent.values())
        heard, state = closed.line["heard"], closed.state
        reasons.update(why.partition(":")[0] for why in closed.line["rejected"].values())
        honest += len(heard)
        require({*heard} <= {*range(HONEST)}, f"round {state.checkpoint.t}: a lie was believed, heard {heard}")
        sound = all(np.isfinite(x).all() for x in arrays_of(state.checkpoint).values())
        require(sound and state.voids == 0, f"round {state.checkpoint.t}: the state is not finite, or a round void")
        require(state.ids.tolist() == list(range(n)), "the roster has changed")
        if sent >= replies:
            break
    require(honest >= 0.99 * HONEST * state.checkpoint.t, f"only {honest} honest replies were believed")
    require(not Bomb.opened, "a pickle was opened")
    return {"seed": seed, "replies": sent, "rounds": state.checkpoint.t, "reasons": dict(reasons.most_common())}


def main(replies: int = 10_000, seed: int | None = None) -> None:
    chosen = secrets.randbelow(2**32) if seed is None else seed
    print(f"seed {chosen}", flush=True)
    logging.getLogger("fedstale.flower.federation").setLevel(logging.ERROR)
    began, memory = time.monotonic(), Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        found = fuzz(replies, chosen, Path(folder))
    print(
        f"{found['replies']} hostile replies in {found['rounds']} rounds, {time.monotonic() - began:.1f} s: refused"
    )
    for reason, count in found["reasons"].items():
        print(f"  {count:6d}  {reason}")


if __name__ == "__main__":
    main()

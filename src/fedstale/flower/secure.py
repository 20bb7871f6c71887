"""The server's side of secure aggregation: four stages over Flower's grid, of which it learns sums only.

    strategy = FedStale("auto", secure=SecAgg())            the ClientApp has mods=[SecureMod("auto")]

train   clients train and send public keys, their weights, and of which round their memories are
keys    each sends the others shares of its secrets, encrypted
sum     each sends what it adds to the sums, masked
unmask  those that are left send shares that open the masks of the sum, and of nothing else
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedstale.core import Order, part, require
from fedstale.flower.federation import adapter
from fedstale.flower.replies import log
from fedstale.flower.secure_mod import SECURE, mask, pairwise, unlocked
from fedstale.privacy.ring import Codes, Ring
from fedstale.privacy.sums import FEWEST

Told = Mapping[str, Any]


@part
class SecAgg:
    """Secure aggregation in which `threshold`, a share above half of the clients, must stay to the end of a round.

    More clients may be lost with a lower threshold; more would have to collude with the server with a higher one.
    `range` and `most` are those of the ring: the largest entry, and the most clients in a round.
    """

    threshold: float = 0.6
    range: float = 8.0
    most: int = 1000

    def __post_init__(self) -> None:
        ok = 0.5 < self.threshold <= 1
        require(ok, f"threshold must be above 0.5 and at most 1, got {self.threshold}")
        Ring(self.range, self.most)

    @property
    def ring(self) -> Ring:
        return Ring(self.range, self.most)

    def shares(self, m: int) -> int:
        """How many of m clients must be left."""
        return max(2, m // 2 + 1, int(np.ceil(self.threshold * m - 1e-9)))


class Orders(NamedTuple):
    """What the clients of a round are told before they add: all of it may be known to everybody."""

    to: Mapping[int, Order]  # node → its order
    counted: Mapping[int, int]  # node → the round in which it was counted last, 0 if its memory is empty
    epoch: int


class Outcome(NamedTuple):
    """What came of the four stages."""

    total: Codes | None  # the sum of what the clients have added; None if too few were left
    weights: Mapping[int, float]  # node → weight of those that are in the sum
    names: tuple[str, ...]  # of the metrics behind the rule's numbers
    lost: Mapping[int, str]  # node → where it was lost


class TooFew(Exception):
    """Fewer clients are left than the sum of a round needs."""


def _need(ok: bool, why: str) -> None:
    if not ok:
        raise TooFew(why)


class Exchange:
    """One round of secure aggregation with the clients of these messages."""

    def __init__(self, secure: SecAgg, grid: Any, timeout: float | None, rule: str, weight_key: str) -> None:
        self.secure, self.grid, self.timeout, self.rule, self.weight_key = secure, grid, timeout, rule, weight_key
        self.lost: dict[int, str] = {}
        self.asked: Mapping[int, Message] = {}  # by node, as all that follows
        self.told: Mapping[int, Told] = {}  # in the first stage, by those that go on

    def run(self, messages: Iterable[Message], t: int, orders: Callable[[Mapping[int, Told]], Orders]) -> Outcome:
        """Play the stages; `orders` makes of what the clients told what they are told."""
        try:
            return self._run(messages, t, orders)
        except TooFew as why:
            log.warning("secure aggregation: nothing is learned from this round: %s", why)
            return Outcome(None, {}, (), self.lost)

    def _run(self, messages: Iterable[Message], t: int, orders: Callable[[Mapping[int, Told]], Orders]) -> Outcome:
        self.asked = {message.metadata.dst_node_id: message for message in messages}
        for message in self.asked.values():
            first = {"stage": "train", "round": t, "rule": self.rule, "weight-key": self.weight_key}
            message.content[SECURE] = ConfigRecord(first)
        told = self._sent("train", self.asked, _hello)
        forms = [reply["names"] for reply in told.values()]
        names: tuple[str, ...] = max(forms, key=forms.count, default=())  # of the metrics that most clients have
        self.told = told = {node: reply for node, reply in told.items() if reply["names"] == names}
        m, most, threshold = len(told), self.secure.most, self.secure.shares(len(told))
        require(m <= most, f"a round of secure aggregation has at most {most} clients, got {m}")
        _need(m >= FEWEST, f"{m} clients have trained, {FEWEST} are needed")
        letters = self._keys(threshold)
        enough = max(FEWEST, threshold)
        _need(len(letters) >= enough, f"{len(letters)} of {m} clients have sent keys, {threshold} are needed")
        masked = self._sums(letters, orders({node: told[node] for node in letters}))
        _need(len(masked) >= enough, f"{len(masked)} of {m} clients have sent a sum, {threshold} are needed")
        total = self._opened(letters, masked, threshold)
        return Outcome(total, {node: float(told[node]["weight"]) for node in masked}, names, self.lost)

    def _keys(self, threshold: int) -> dict[int, list[bytes]]:
        """Node → what it has for each client, in their order."""
        nodes = [str(node) for node in self.told]
        keys = {name: [reply[name] for reply in self.told.values()] for name in ("pk1", "pk2")}
        content = {"stage": "keys", "nodes": nodes, "threshold": threshold, **keys}
        to = {node: _next(self.asked[node], content) for node in self.told}
        return self._sent("keys", to, lambda reply: _list(reply, "letters", len(nodes) + 1))  # and its key

    def _sums(self, letters: Mapping[int, list[bytes]], orders: Orders) -> dict[int, Codes]:
        """Node → what it adds, masked."""
        to, places = {}, {node: k for k, node in enumerate(self.told)}
        for node in letters:
            k, sources, order = places[node], [n for n in letters if n != node], orders.to[node]
            content = {
                "stage": "sum", "nodes": [str(n) for n in sources], "letters": [letters[n][k] for n in sources],
                "weight": order.weight, "inverse": order.inverse, "beta": order.beta, "visits": order.visits,
                "counted": orders.counted[node], "epoch": orders.epoch, "range": self.secure.range,
                "most": self.secure.most,
            }  # fmt: skip
            to[node] = _next(self.asked[node], content)
            if order.centre is not None:
                to[node].content["centre"] = ArrayRecord({"centre": Array(order.centre)})
        found: dict[int, Codes] = self._sent("sum", to, _codes)
        size = len(next(iter(found.values()))) if found else 0
        return {node: codes for node, codes in found.items() if len(codes) == size}

    def _opened(self, letters: Mapping[int, list[bytes]], masked: Mapping[int, Codes], threshold: int) -> Codes:
        """The sum without its masks."""
        active, dead = [*masked], [node for node in letters if node not in masked]
        content = {"stage": "unmask", "active": [str(n) for n in active], "dead": [str(n) for n in dead]}
        to = {node: _next(self.asked[node], content) for node in active}
        shares = self._sent("unmask", to, lambda reply: _list(reply, "shares", len(active) + len(dead)))
        left = f"fewer than {threshold} of {len(self.told)} clients were left to open the sum"
        _need(len(shares) >= threshold, left)
        some = [*shares.values()][:threshold]
        secrets = [adapter.combine_shares([mine[k] for mine in some]) for k in range(len(active + dead))]
        total: Codes = np.array([*masked.values()], np.uint32).sum(axis=0, dtype=np.uint32)
        for secret in secrets[: len(active)]:
            total = total - mask(secret, len(total))
        others = [(node, self.told[node]["pk1"]) for node in active]
        for node, secret in zip(dead, secrets[len(active) :], strict=True):
            key = unlocked(secret, letters[node][-1])
            total = total + pairwise(node, key, others, len(total))  # the others have added the opposite of it
        return total

    def _sent(self, stage: str, to: Mapping[int, Message], read: Callable[[Message], Any]) -> dict[int, Any]:
        """Node → what its reply to this stage says; those without a sound reply are lost."""
        found: dict[int, Any] = {}
        for reply in self.grid.send_and_receive([*to.values()], timeout=self.timeout):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise ValueError(str(reply.error.reason)[:200])
                if node in to and node not in found:
                    found[node] = read(reply)
            except (KeyError, TypeError, ValueError) as reason:
                self.lost[node] = f"{stage}: {reason}"
        self.lost |= {node: f"{stage}: no reply" for node in to if node not in found and node not in self.lost}
        return {node: found[node] for node in sorted(found)}


def _next(message: Message, content: dict[str, Any]) -> Message:
    """A message of a later stage to the client of this one."""
    m, record = message.metadata, RecordDict({SECURE: ConfigRecord(content)})
    return Message(record, dst_node_id=m.dst_node_id, message_type=m.message_type, group_id=m.group_id)


def _hello(reply: Message) -> Told:
    record = reply.content.config_records[SECURE]
    weight = float(record["weight"])
    if not 0 < weight < 2.0**53 or not all(isinstance(record[key], bytes) for key in ("pk1", "pk2")):
        raise ValueError("its weight or its keys are none")
    numbers = {key: int(record[key]) for key in ("epoch", "round", "next-round")}
    names = tuple(str(name) for name in record["names"])
    return {"pk1": record["pk1"], "pk2": record["pk2"], "weight": weight, "names": names, **numbers}


def _list(reply: Message, name: str, size: int) -> list[bytes]:
    found = reply.content.config_records[SECURE][name]
    if not isinstance(found, list) or len(found) != size or not all(isinstance(x, bytes) for x in found):
        raise ValueError(f"{name} must be {size} pieces of bytes")
    return found


def _codes(reply: Message) -> Codes:
    array = reply.content.array_records["masked"]["masked"]
    if array.dtype != "uint32" or len(array.shape) != 1:
        raise ValueError("what it adds must be one array of uint32")
    return np.asarray(array.numpy(), np.uint32)

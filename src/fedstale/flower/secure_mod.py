"""The client's side of secure aggregation: one mod of a ClientApp.

    from fedstale.flower import SecureMod

    app = ClientApp(mods=[SecureMod("auto")])

The client trains as before. Its update, its memory and its metrics stay here: what leaves is masked, and the masks
fall away in the sum of at least three clients only. A server that asks for an update in the clear gets none.

Masks and the secrets that they grow from are those of Bonawitz et al., CCS 2017. Keys, their agreement, their
shares and the encryption of these are Flower's. Masks are a keystream of ChaCha20, from the package `cryptography`:
Flower's own generator has a seed of 32 bits, which a server could search.
"""

import base64
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedstale.core import Order, Splits, Strategy, require
from fedstale.flower.arrays import BUFFERS, Layout
from fedstale.flower.federation import adapter
from fedstale.flower.federation.client.own_memory import add, read_memory
from fedstale.privacy.ring import Codes, Ring
from fedstale.privacy.sums import FEWEST
from fedstale.registry import recipe

SECURE, ROUND = "fedstale.secure", "fedstale.round"  # names of records
Next = Callable[[Message, Context], Message]


class SecureMod:
    """Answers the four stages of secure aggregation for this rule, a recipe's name or a strategy that is split."""

    def __init__(self, rule: str | Strategy = "auto") -> None:
        strategy = recipe(rule).strategy if isinstance(rule, str) else rule
        ok = isinstance(strategy, Splits)
        require(ok, f"secure aggregation needs a rule that is split, such as auto or fedstale, got {strategy}")
        self.rule: Any = strategy

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        if SECURE not in message.content.config_records:
            raise ValueError("this client answers secure aggregation, and was asked for an update in the clear")
        asked, me = message.content.config_records[SECURE], message.metadata.dst_node_id
        stage = str(asked["stage"])
        if stage == "train":
            content = RecordDict({SECURE: self._train(message, context, call_next, asked)})
        elif stage == "keys":
            content = RecordDict({SECURE: _share(me, context, asked)})
        elif stage == "sum":
            centre = message.content.array_records.get("centre")
            content = RecordDict({"masked": self._mask(me, context, asked, centre)})
        else:
            content = RecordDict({SECURE: _unmask(me, context, asked)})
        return Message(content, reply_to=message)

    def _train(self, message: Message, context: Context, call_next: Next, asked: Any) -> ConfigRecord:
        """Train, keep the update, and tell public keys, the weight, and of which round the memory is."""
        told, mine = str(asked["rule"]), repr(self.rule)
        if told != mine:
            raise ValueError(f"the server's rule is {told[:200]}, and that of this client's SecureMod is {mine}")
        (sent,) = message.content.array_records.values()
        layout = Layout.of(sent, BUFFERS)
        if layout.buffers:
            raise ValueError(f"secure aggregation has no averaged buffers, got {layout.buffers[0].name!r}")
        before = layout.flat(layout.values(sent))
        reply = call_next(message, context)
        if reply.has_error():
            raise ValueError(f"training failed: {reply.error.reason}")
        (arrays,) = reply.content.array_records.values()
        update = layout.flat(layout.told(arrays)) - before
        weight, names, values = _metrics(reply.content, str(asked["weight-key"]))
        (sk1, pk1), (sk2, pk2) = fresh_keys(), fresh_keys()
        secrets = {"sk1": sk1, "sk2": sk2, "pk1": pk1, "pk2": pk2}
        context.state[ROUND] = ConfigRecord({"round": int(asked["round"]), "metrics": values, **secrets})
        context.state[f"{ROUND}.update"] = ArrayRecord({"update": Array(update)})
        own = read_memory(context)
        public = {"pk1": pk1, "pk2": pk2, "weight": weight, "names": names}
        return ConfigRecord(public | {"epoch": own.epoch, "round": own.round, "next-round": own.next_round})

    def _mask(self, me: int, context: Context, asked: Any, centre: Any) -> ArrayRecord:
        """What this client adds to the sums, masked; its next memory waits until the server has counted it."""
        now = context.state.config_records[ROUND]
        seeds, shares, nodes = _opened(me, now, asked)
        now["seed-shares"], now["lock-shares"], now["nodes"] = seeds, shares, [str(node) for node in nodes]
        update = context.state.array_records.pop(f"{ROUND}.update")["update"].numpy()
        order = Order(
            float(asked["weight"]), float(asked["inverse"]), float(asked["beta"]), int(asked["visits"]),
            None if centre is None else centre["centre"].numpy(),
        )  # fmt: skip
        own = read_memory(context).counted(int(asked["counted"]), int(asked["epoch"]))
        said, before, after = add(context, own, self.rule, update, order, int(now["round"]))
        numbers = np.concatenate([said.numbers, order.weight * np.array(now["metrics"], np.float64)])
        codes = Ring(float(asked["range"]), int(asked["most"])).encode(said.sums, before, after, numbers)
        publics = dict(zip(now["all"], now["all-pk1"], strict=True))
        others = [(node, publics[str(node)]) for node in nodes if node != me]
        masked = codes + mask(bytes(now["seed"]), len(codes)) + pairwise(me, bytes(now["sk1"]), others, len(codes))
        return ArrayRecord({"masked": Array(masked)})


def _metrics(content: RecordDict, key: str) -> tuple[float, list[str], list[float]]:
    """The weight, and the names and values of the metrics that are numbers."""
    (metrics,) = content.metric_records.values() or (MetricRecord({}),)
    found = {name: float(x) for name, x in sorted(metrics.items()) if isinstance(x, int | float) and name != key}
    weight = metrics.get(key, 1.0)
    if not isinstance(weight, int | float) or not 0 < weight < 2.0**53:
        raise ValueError(f"{key!r} must be a number above 0, got {str(weight)[:40]}")
    return float(weight), [*found], [*found.values()]


def _share(me: int, context: Context, asked: Any) -> ConfigRecord:
    """Shares of this client's secrets, one for each client, encrypted for it."""
    now, threshold = context.state.config_records[ROUND], int(asked["threshold"])
    nodes = [int(node) for node in asked["nodes"]]
    ones, twos = list(asked["pk1"]), list(asked["pk2"])
    if len(nodes) < FEWEST or 2 * threshold <= len(nodes) or threshold > len(nodes):
        raise ValueError(f"{threshold} of {len(nodes)} clients is no threshold that protects this one")
    k = nodes.index(me)
    if (ones[k], twos[k]) != (now["pk1"], now["pk2"]) or len({*ones, *twos}) != 2 * len(nodes):
        raise ValueError("the public keys are not those of different clients")
    seed, lock = os.urandom(32), os.urandom(32)  # the lock is shared in the place of the key, which is longer
    parts = [adapter.create_shares(secret, threshold, len(nodes)) for secret in (seed, lock)]
    now["seed"], now["threshold"], now["all"] = seed, threshold, [str(node) for node in nodes]
    now["all-pk1"] = ones
    mine, letters = bytes(now["sk2"]), []
    secrets = [b"" if node == me else agreed(mine, key) for node, key in zip(nodes, twos, strict=True)]
    for node, secret, a, b in zip(nodes, secrets, *parts, strict=True):
        if node == me:
            now["own-seed-share"], now["own-lock-share"] = a, b
        plain = adapter.share_keys_plaintext_concat(me, node, a, b)
        letters.append(b"" if node == me else adapter.encrypt(secret, plain))
    now["secrets"] = secrets
    return ConfigRecord({"letters": [*letters, locked(lock, bytes(now["sk1"]))]})


def _opened(me: int, now: Any, asked: Any) -> tuple[list[bytes], list[bytes], list[int]]:
    """The shares that other clients have sent to this one, and whose they are; with its own."""
    nodes, seeds, locks = [me], [bytes(now["own-seed-share"])], [bytes(now["own-lock-share"])]
    secrets = dict(zip(now["all"], now["secrets"], strict=True))
    for source, letter in zip(asked["nodes"], asked["letters"], strict=True):
        plain = adapter.decrypt(secrets[source], letter)
        found, to, seed, lock = adapter.share_keys_plaintext_separate(plain)
        if (found, to) != (int(source), me):
            raise ValueError("a share is not from the client that it is said to be from, or not for this one")
        nodes, seeds, locks = [*nodes, found], [*seeds, seed], [*locks, lock]
    if len(nodes) < max(FEWEST, int(now["threshold"])) or len({*nodes}) != len(nodes):
        raise ValueError(f"{len(nodes)} clients are left, fewer than the threshold")
    return seeds, locks, nodes


def _unmask(me: int, context: Context, asked: Any) -> ConfigRecord:
    """Shares of the seeds of clients that are in the sum, and of the keys of those that are not: never both."""
    now = context.state.config_records.pop(ROUND)
    active, dead = ([*asked[name]] for name in ("active", "dead"))
    known = {*now["nodes"]}
    sound = len({*active, *dead}) == len(active) + len(dead) and {*active, *dead} <= known and str(me) in active
    if not sound or len(active) < max(FEWEST, int(now["threshold"])):
        raise ValueError("this would not be the sum of enough clients")
    seeds, locks = (dict(zip(now["nodes"], now[name], strict=True)) for name in ("seed-shares", "lock-shares"))
    return ConfigRecord({"shares": [seeds[node] for node in active] + [locks[node] for node in dead]})


def fresh_keys() -> tuple[bytes, bytes]:
    """A private key and its public one."""
    private, public = adapter.generate_key_pairs()
    return adapter.private_key_to_bytes(private), adapter.public_key_to_bytes(public)


def agreed(private: bytes, public: bytes) -> bytes:
    """The secret that two clients share, each with its own private key and the other's public one."""
    mine, other = adapter.bytes_to_private_key(private), adapter.bytes_to_public_key(public)
    return bytes(adapter.generate_shared_key(mine, other))


def locked(lock: bytes, key: bytes) -> bytes:
    """A private key that only those can read who have put the shares of its lock, 32 bytes, together."""
    return bytes(adapter.encrypt(base64.urlsafe_b64encode(lock), key))


def unlocked(lock: bytes, text: bytes) -> bytes:
    """The private key."""
    return bytes(adapter.decrypt(base64.urlsafe_b64encode(lock), text))


def mask(secret: bytes, size: int) -> Codes:
    """A mask that grows from 32 secret bytes, each of which is used once."""
    stream = Cipher(algorithms.ChaCha20(secret, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(4 * size)), np.dtype("<u4")).astype(np.uint32)


def pairwise(me: int, private: bytes, others: Iterable[tuple[int, bytes]], size: int) -> Codes:
    """The masks that this client shares with others, node and public key each: they cancel in the sum of both."""
    total = np.zeros(size, np.uint32)
    for node, public in others:
        one = mask(base64.urlsafe_b64decode(agreed(private, public)), size)
        total = total + one if me > node else total - one
    return total

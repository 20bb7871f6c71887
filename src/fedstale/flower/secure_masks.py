"""The masks of secure aggregation, and the secrets that they grow from (Bonawitz et al., CCS 2017).

Keys, their agreement, their shares and the encryption of these are Flower's. Masks are a keystream of ChaCha20,
from the package `cryptography`: Flower's own generator has a seed of 32 bits, which a server could search.
"""

import base64
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedstale.flower.federation import adapter
from fedstale.privacy.ring import Codes


class Keys(NamedTuple):
    """A pair of keys, as bytes."""

    private: bytes
    public: bytes

    @classmethod
    def fresh(cls) -> "Keys":
        private, public = adapter.generate_key_pairs()
        return cls(adapter.private_key_to_bytes(private), adapter.public_key_to_bytes(public))


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

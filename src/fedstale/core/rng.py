"""Named random streams: a draw depends on the name of its stream, never on call order, engine or worker."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

__all__ = ["stream"]


class _Key(ISeedSequence):
    """Hands 16 bytes to Philox as they are; given as a number, numpy would also draw a seed that is never used."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self.digest, np.uint64)


def key(seed: int, *name: str | int) -> bytes:
    """The 16-byte key of the stream with this name."""
    return hashlib.blake2b("/".join(map(str, (seed, *name))).encode(), digest_size=16).digest()


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """A generator of its own for each (seed, name): `stream(seed, "local", t, client)`."""
    return np.random.Generator(np.random.Philox(_Key(key(seed, *name))))  # type: ignore[arg-type]  # numpy's stub is too narrow

"""Named random streams: what is drawn depends on its name, never on call order, engine or worker."""

import hashlib

import numpy as np


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """A generator of its own for each (seed, name): `stream(seed, "local", t, client)`."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *name))).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, np.uint64)))

"""The clients of a federation: a versioned list of client numbers with their public keys."""

import dataclasses
import hashlib
import re
from pathlib import Path

import numpy as np

from fedstale.core import Array, BadInput, Ids, part, require
from fedstale.flower.federation.state.manifest import read_sealed, write_sealed

FORMAT = 1
EDITED = "restore it from a backup, or remove its key checksum if you changed it yourself"
KEY = re.compile(r"[0-9a-f]{64}")


def key_hash(public_key: bytes) -> str:
    """The hash by which the roster names a public key: SHA-256 of its PEM encoding, in hex."""
    return hashlib.sha256(public_key).hexdigest()


@part
class Member:
    """A client: its number, the hash of its public key, and its weight a_i before normalising."""

    id: int
    key: str
    name: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        require(self.id >= 0, f"a client number must be at least 0, got {self.id}")
        ok = KEY.fullmatch(self.key) is not None
        require(ok, f"the key of client {self.id} must be 64 hex digits, got {self.key!r}")
        ok = 0 < self.weight < float("inf")
        require(ok, f"the weight of client {self.id} must be above 0, got {self.weight}")


@part
class Roster:
    """The clients by ascending number. A number is never given twice, not even after its client has left."""

    version: int
    next: int  # the number of the next client to join
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        ids, keys = [m.id for m in self.members], [m.key for m in self.members]
        require(ids == sorted(set(ids)), f"client numbers must ascend, each once, got {ids}")
        require(len(set(keys)) == len(keys), "every client of a roster needs a key of its own")
        require(self.next > max(ids, default=-1), f"next must be above every client number, got {self.next}")

    @property
    def ids(self) -> Ids:
        return np.array([m.id for m in self.members], np.int64)

    @property
    def weights(self) -> Array:
        """(n,) a_i, summing to 1, in the order of `ids`."""
        given = np.array([m.weight for m in self.members], np.float64)
        return np.asarray(given / given.sum(), np.float32)

    def by_key(self) -> dict[str, int]:
        """Hash of the key → client number."""
        return {m.key: m.id for m in self.members}

    def joined(self, key: str, name: str = "", weight: float = 1.0) -> "Roster":
        """The next version of the roster, with one more client."""
        owner = self.by_key().get(key)
        require(owner is None, f"this key is client {owner} already")
        newcomer = Member(self.next, key, name, weight)
        return Roster(self.version + 1, self.next + 1, (*self.members, newcomer))

    def rekeyed(self, client: int, key: str) -> "Roster":
        """The next version of the roster, in which a client has another key; all that is known of it stays."""
        require(client in self.ids, f"there is no client {client} in the roster")
        members = tuple(dataclasses.replace(m, key=key) if m.id == client else m for m in self.members)
        return Roster(self.version + 1, self.next, members)

    def left(self, client: int) -> "Roster":
        """The next version of the roster, without this client."""
        rest = tuple(m for m in self.members if m.id != client)
        require(len(rest) < len(self.members), f"there is no client {client} in the roster")
        return Roster(self.version + 1, self.next, rest)


def read(path: Path) -> Roster:
    """The roster in a JSON file."""
    raw = read_sealed(path, EDITED, unsealed=True)
    found = raw.get("format")
    require(found == FORMAT, f"{path} has roster format {found}, this version reads {FORMAT}")
    try:
        members = tuple(Member(**m) for m in raw["clients"])
        return Roster(int(raw["version"]), int(raw["next"]), members)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not a roster: {error!r}") from None


def save(path: Path, roster: Roster) -> None:
    """Write the roster as a JSON file."""
    clients = [dataclasses.asdict(m) for m in roster.members]
    write_sealed(path, {"format": FORMAT, "version": roster.version, "next": roster.next, "clients": clients})

"""On/off Markov chains: clients that stay away, or stay, for a while.

Rodio et al., Federated Learning under Heterogeneous and Correlated Client Availability (CA-Fed), 2023.
"""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, BadInput, Floats, Mask, keep, part, per_client, require
from fedstale.core.parts import Natural, NotNegative, Range, Share
from fedstale.core.rng import stream
from fedstale.participation.groups import MOST, Kind, checked_members, group_of, independent


@part
class Markov:
    """Each client is a two-state chain: P(on → on) = λ + (1-λ)π, P(off → on) = (1-λ)π, first state ~ π.

    `availability` is π, the long-run share of rounds; `eigenvalue` is λ, the correlation of one round
    with the next: 0 is Bernoulli, near 1 means long stays and absences, below 0 means alternation.
    Both are one number for all clients or a list with one per client.
    """

    availability: npt.ArrayLike
    eigenvalue: npt.ArrayLike

    def __post_init__(self) -> None:
        π, λ = _checked(self.availability, self.eigenvalue, "client")
        keep(self, "availability", π)
        keep(self, "eigenvalue", λ)

    def probs(self, n: int) -> Array:
        return self._settings(n)[0].astype(np.float32)

    def mixing(self, n: int) -> Floats:
        """(n,) λ, the second eigenvalue of each client's chain."""
        return self._settings(n)[1].copy()

    def kinds(self, n: int) -> Iterator[Kind]:
        yield independent(self._settings(n)[0])

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        π, λ = self._settings(n)
        stay, come = λ + (1 - λ) * π, (1 - λ) * π  # P(on → on), P(off → on)
        on = rng.random(n) < π
        while True:
            yield on.copy()
            u = rng.random(n)
            on = (on & (u < stay)) | (~on & (u < come))

    def _settings(self, n: int) -> tuple[Floats, Floats]:
        π, λ = self.availability, self.eigenvalue
        return per_client(π, n, "availabilities"), per_client(λ, n, "eigenvalues")


@part
class MarkovClasses:
    """Four classes of clients: often or seldom there, and with long or no memory.

    The first half of the clients has π = 1/2 + g, the last 1/2 - g. The first half of each has λ = nu
    (correlated), the last λ ~ N(0, eps²) (weakly correlated), drawn once from the stream named by
    `seed`. The defaults are the setting of CA-Fed's experiments, there with 100 clients.
    """

    g: Annotated[float, Range("in [0, 0.5]")] = 0.4
    nu: Share = 0.9
    eps: NotNegative = 0.01
    seed: Natural = 0

    def chain(self, n: int) -> Markov:
        quarter = group_of(n, 4, None)
        weak = self.eps * stream(self.seed, "markov classes").standard_normal(n)
        π = np.where(quarter < 2, 0.5 + self.g, 0.5 - self.g)
        return Markov(π, eigenvalue=np.where(quarter % 2 == 0, self.nu, weak))

    def probs(self, n: int) -> Array:
        return self.chain(n).probs(n)

    def mixing(self, n: int) -> Floats:
        return self.chain(n).mixing(n)

    def kinds(self, n: int) -> Iterator[Kind]:
        return self.chain(n).kinds(n)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        return self.chain(n).rows(n, rng)


@part
class ClusteredMarkov:
    """All clients of a cluster share one chain: they are there together or away together.

    `availability` and `eigenvalue` are one number for all clusters or one per cluster (see Markov);
    `members` is the cluster 0, 1, … of each client, blocks of neighbours if left out.
    """

    clusters: int
    availability: npt.ArrayLike
    eigenvalue: npt.ArrayLike
    members: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        require(1 <= self.clusters <= MOST, f"clusters must be from 1 to {MOST}, got {self.clusters}")
        π, λ = _checked(self.availability, self.eigenvalue, "cluster")
        for name, value in (("availability", π), ("eigenvalue", λ)):
            ok = value.ndim == 0 or len(value) == self.clusters
            require(ok, f"{name} must be one number or one for each of {self.clusters} clusters, got {value.size}")
            keep(self, name, value)
        keep(self, "members", checked_members(self.members, self.clusters))

    def probs(self, n: int) -> Array:
        return self._chain().probs(self.clusters)[self._cluster(n)]

    def mixing(self, n: int) -> Floats:
        return self._chain().mixing(self.clusters)[self._cluster(n)]

    def kinds(self, n: int) -> Iterator[Kind]:
        π = np.broadcast_to(np.asarray(self.availability, np.float64), self.clusters)
        yield Kind(1.0, π, self._cluster(n), together=True)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        cluster = self._cluster(n)
        for on in self._chain().rows(self.clusters, rng):
            yield on[cluster]

    def _chain(self) -> Markov:
        return Markov(self.availability, self.eigenvalue)

    def _cluster(self, n: int) -> npt.NDArray[np.int64]:
        return group_of(n, self.clusters, self.members)


def _checked(availability: npt.ArrayLike, eigenvalue: npt.ArrayLike, owner: str) -> tuple[Floats, Floats]:
    """π and λ as arrays; only a λ below 0 can lead out of [0, 1], a hair of rounding is forgiven."""
    π = _numbers("availability", availability, 0, owner)
    λ = _numbers("eigenvalue", eigenvalue, -1, owner)
    same = π.ndim == 0 or λ.ndim == 0 or len(π) == len(λ)
    require(same, f"availability and eigenvalue must be equally many, got {π.size} and {λ.size}")
    stay, come = np.atleast_1d(λ + (1 - λ) * π, (1 - λ) * π)
    for i in np.flatnonzero((stay < -1e-12) | (come > 1 + 1e-12)):
        pair = f"availability {π if π.ndim == 0 else π[i]:g} and eigenvalue {λ if λ.ndim == 0 else λ[i]:g}"
        chances = f"P(on → on) = {stay[i]:g} and P(off → on) = {come[i]:g}"
        raise BadInput(f"{owner} {i}: {pair} imply {chances}, which must be in [0, 1]")
    return π, λ


def _numbers(name: str, value: npt.ArrayLike, low: int, owner: str) -> Floats:
    x = np.array(value, np.float64)
    require(x.ndim <= 1 and x.size > 0, f"{name} must be one number or one per {owner}, got shape {x.shape}")
    for i in np.flatnonzero(~((x >= low) & (x <= 1))):
        raise BadInput(f"{owner} {i}: {name} must be in [{low}, 1], got {x.flat[i]:g}")
    return x

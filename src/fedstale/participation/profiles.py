"""Probabilities that depend on a client's labels and change with time.

Xiang et al., Efficient Federated Learning against Heterogeneous and Non-stationary Client Unavailability (FedAWE),
NeurIPS 2024, section 7.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Floats, Mask, PositiveShare, Range, Share, keep, part, require, stream
from fedstale.participation.bernoulli import checked_labels
from fedstale.participation.groups import Kind


class Profile(Protocol):
    """How availability changes over the rounds of a period, which repeats."""

    @property
    def period(self) -> int: ...
    def level(self, place: int, p: Floats) -> Floats:
        """(n,) the probabilities at this place of the period, 0 … period - 1, of clients with base p (n,)."""


@part
class Stationary:
    """The same probabilities in all rounds."""

    period: ClassVar[int] = 1

    def level(self, place: int, p: Floats) -> Floats:
        return p


@part
class Staircase:
    """p_i for half a period, then `low` · p_i for the other half."""

    period: Annotated[int, Range("at least 2")] = 20
    low: Share = 0.4

    def level(self, place: int, p: Floats) -> Floats:
        return p if 2 * place < self.period else self.low * p


@part
class Sine:
    """f p_i with f = 1 - γ + γ sin(2π t / period); 0 where that is below `cut`, so that rare clients pause.

    γ is `amplitude`. With cut = 0.1 it is the paper's interleaved sine.
    """

    period: Annotated[int, Range("at least 2")] = 20
    amplitude: Annotated[float, Range("in [0, 0.5]")] = 0.3
    cut: Annotated[float, Range("at least 0 and below 1")] = 0.0

    def level(self, place: int, p: Floats) -> Floats:
        f = 1 - self.amplitude + self.amplitude * np.sin(2 * np.pi * place / self.period)
        return np.where(f * p < self.cut, 0.0, f * p)


@part
class LabelProfile:
    """Independent coins with p_i = the label shares of client i · φ, changed over time by a profile.

    φ_c is drawn once from U(0, 1) for the first half of the classes and from U(0, `low`) for the others, by
    the stream named by `seed`. The marginals are the averages of a period.
    """

    from_data: ClassVar[tuple[str, ...]] = ("labels",)  # what an experiment takes from its data
    labels: npt.ArrayLike
    low: PositiveShare = 0.5
    profile: Profile = Stationary()
    seed: int = 0

    def __post_init__(self) -> None:
        keep(self, "labels", checked_labels(self.labels))

    def probs(self, n: int) -> Array:
        return np.asarray(np.mean(list(self._period(n)), axis=0), np.float32)

    def kinds(self, n: int) -> Iterator[Kind]:
        for p in self._period(n):
            yield Kind(1 / self.profile.period, p, np.arange(n))

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        while True:
            for p in self._period(n):
                yield rng.random(n) < p

    def _period(self, n: int) -> Iterator[Floats]:
        """(n,) the probabilities of each round of a period."""
        labels = np.asarray(self.labels)
        require(len(labels) == n, f"{n} clients need {n} rows of labels, got {len(labels)}")
        classes = labels.shape[1]
        most = np.where(np.arange(classes) < classes / 2, 1.0, self.low)
        φ = most * stream(self.seed, "label profile").random(classes)
        p = labels / labels.sum(axis=1, keepdims=True) @ φ
        return (np.asarray(self.profile.level(place, p)) for place in range(self.profile.period))

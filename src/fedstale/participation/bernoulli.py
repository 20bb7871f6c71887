"""Independent coins: every client is available with its own probability, every round anew."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Floats, Mask, keep, keep_numbers, part, per_client, require
from fedstale.core.parts import Positive, PositiveShare, Share
from fedstale.core.rng import stream
from fedstale.participation.groups import Kind, independent


@part
class Bernoulli:
    """Client i is available with probability p_i, independently of everything.

    `p` is one probability for all clients or a list with one per client.
    """

    p: npt.ArrayLike

    def __post_init__(self) -> None:
        keep_numbers(self, "p", "in [0, 1]")

    def probs(self, n: int) -> Array:
        return per_client(self.p, n, "probabilities").astype(np.float32)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        p = per_client(self.p, n, "probabilities")
        while True:
            yield rng.random(n) < p


@part
class TwoGroups:
    """The first half of the clients is always there, the last n // 2 come with probability p_min."""

    p_min: Share

    def probs(self, n: int) -> Array:
        return self._coins(n).probs(n)

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        return self._coins(n).rows(n, rng)

    def _coins(self, n: int) -> Bernoulli:
        return Bernoulli(np.where(np.arange(n) < n - n // 2, 1.0, self.p_min))


def checked_labels(given: npt.ArrayLike) -> Floats:
    """(n, classes) counts or shares of the labels of each client, which holds at least one sample."""
    labels = np.array(given, np.float64)
    ok = labels.ndim == 2 and labels.size > 0 and bool(np.isfinite(labels).all() and (labels >= 0).all())
    require(ok, f"labels must be (clients, classes) counts or shares of at least 0, got shape {labels.shape}")
    empty = np.flatnonzero(labels.sum(axis=1) == 0)[:5].tolist()
    require(not empty, f"labels must hold at least one sample of each client, got none of clients {empty}")
    return labels


def tied_probs(
    labels: npt.ArrayLike, concentration: float, mean: float, floor: float, rng: np.random.Generator
) -> Floats:
    """(n,) p_i = the client's label shares · r, with one r ~ Dirichlet(concentration) over the labels.

    `labels` is (n, classes), counts or shares. The p_i are scaled to `mean` on average, and only then
    kept in [floor, 1].
    """
    shares = np.asarray(labels, np.float64)
    r = rng.dirichlet(np.full(shares.shape[1], concentration))
    p = shares / shares.sum(axis=1, keepdims=True) @ r
    require(p.max() > 0, "the clients must hold some label that the Dirichlet draw favours, got none")
    return np.asarray(np.clip(p * (mean / p.mean()), floor, 1.0))


@part
class LabelTied:
    """Independent coins with p_i tied to the labels of client i: who holds rare labels is rarely there.

    The lower the concentration, the fewer labels decide who comes. The draw is that of the stream
    named by `seed`, so that the p_i are known before the first round (see tied_probs).
    Wang and Ji, A Lightweight Method for Tackling Unknown Participation Statistics (FedAU), ICLR 2024, section 6.
    """

    from_data: ClassVar[tuple[str, ...]] = ("labels",)  # what an experiment takes from its data
    labels: npt.ArrayLike
    concentration: Positive = 0.1
    mean: PositiveShare = 0.1
    floor: Share = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        keep(self, "labels", checked_labels(self.labels))

    def probs(self, n: int) -> Array:
        return self._p(n).astype(np.float32)

    def mixing(self, n: int) -> Floats:
        return np.zeros(n)

    def kinds(self, n: int) -> Iterator[Kind]:
        yield independent(self._p(n))

    def rows(self, n: int, rng: np.random.Generator) -> Iterator[Mask]:
        return Bernoulli(self._p(n)).rows(n, rng)

    def _p(self, n: int) -> Floats:
        got = len(np.asarray(self.labels))
        require(got == n, f"{n} clients need {n} rows of labels, got {got}")
        rng = stream(self.seed, "label tied")
        return tied_probs(self.labels, self.concentration, self.mean, self.floor, rng)

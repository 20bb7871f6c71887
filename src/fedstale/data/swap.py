"""Label swaps: clients that disagree on what a label means.

A swap has one method, `apply(y, clients, rng)`: new labels (M,), given the indices of each client's
samples. `federate` applies it to the training and to the test samples, so that the fraction holds in each.
"""

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fedstale.core import Ids, Share, part, require

Pair = tuple[int, int]


class Swap(Protocol):
    """A rule that exchanges labels at some clients."""

    def apply(self, y: Ids, clients: Sequence[Ids], rng: np.random.Generator) -> Ids: ...


@part
class LabelSwap:
    """The rare group, which is the last n // 2 clients, swaps a fraction of two labels.

    Of each such client's samples of `labels[0]`, a random `round(fraction · count)` become `labels[1]`,
    and the reverse. fraction = 0: homogeneous data; 1: the groups contradict each other on these labels.
    Rodio & Neglia, "FedStale", sec. 5.1, where it is σ̂²; which two labels is not said there.
    """

    fraction: Share
    labels: Pair = (0, 1)

    def __post_init__(self) -> None:
        _check(labels=self.labels)

    def apply(self, y: Ids, clients: Sequence[Ids], rng: np.random.Generator) -> Ids:
        rare = clients[len(clients) - len(clients) // 2 :]
        return _swapped(y, [self.labels], rare, self.fraction, rng)


@part
class ReleasedSwap:
    """What the FedStale authors' released code does: every client swaps, rare or not.

    Clients 0, 2, 4, … swap the pair `even`, the others the pair `odd`, each a random
    `round(fraction · count)` of its samples of either label (the code rounds down). The defaults are its
    pairs for MNIST; for CIFAR-10 it names (3, 5), cat and dog, and (2, 6), bird and frog.
    """

    fraction: Share
    even: Pair = (0, 1)
    odd: Pair = (8, 9)

    def __post_init__(self) -> None:
        _check(even=self.even, odd=self.odd)

    def apply(self, y: Ids, clients: Sequence[Ids], rng: np.random.Generator) -> Ids:
        return _swapped(y, [self.even, self.odd], clients, self.fraction, rng)


def _check(**pairs: Pair) -> None:
    for name, pair in pairs.items():
        ok = len(pair) == 2 and pair[0] != pair[1] and min(pair) >= 0
        require(ok, f"{name} must be two different labels, got {pair}")


def _swapped(
    y: Ids, pairs: Sequence[Pair], clients: Sequence[Ids], fraction: float, rng: np.random.Generator
) -> Ids:
    """New labels: each client, the pairs taking turns, exchanges a fraction of its samples of two labels."""
    missing = sorted({label for pair in pairs for label in pair} - set(np.unique(y).tolist()))
    require(not missing, f"a swap needs labels that the data have, got {missing}")
    swapped = y.copy()
    for samples, pair in zip(clients, itertools.cycle(pairs), strict=False):
        held = [samples[swapped[samples] == label] for label in pair]
        for mine, other in zip(held, reversed(pair), strict=True):
            swapped[rng.choice(mine, round(fraction * len(mine)), replace=False)] = other
    return swapped

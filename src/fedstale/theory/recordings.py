"""Statistics of a participation matrix."""

from __future__ import annotations  # `help` shows the names of hints

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedstale.core import Floats, Mask, arguments_checked, normalised
from fedstale.theory.bias import plain_weights, total_variation
from fedstale.theory.checks import matrix_of, over
from fedstale.theory.stale import Spread, spread

__all__ = ["Counts", "Summary", "summary"]


class Counts(NamedTuple):
    """Whole numbers of rounds and how they spread; nan where there were none."""

    mean: float
    quantiles: Floats  # (5,) least, quarter, half, three quarters, most
    histogram: npt.NDArray[np.int64]  # [k] how often k came


class Summary(NamedTuple):
    """What a participation matrix says of the clients, and of averaging whoever comes."""

    rounds: int
    clients: int
    marginals: Floats  # (n,) share of the rounds in which each was there
    spread: Spread  # of the marginals
    on: Counts  # lengths of the stretches of presence, cut off where the matrix begins and ends
    off: Counts  # and of absence
    mixing: Floats  # (n,) λ̂_i: share there after a presence, minus share there after an absence; 0 if unknown
    staleness: Counts  # rounds since a client was last there, of every client and round from its first on
    unseen: float  # share of the client-rounds before the client's first
    longest_absence: npt.NDArray[np.int64]  # (n,) most rounds in a row without the client, both ends included
    bias: float  # total variation between the weights a and those of plain averaging
    least_rounds: float  # 1 / p_min: no rule can use everybody in fewer, on average


@arguments_checked
def summary(matrix: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Summary:
    """Of a 0/1 matrix, rounds × clients; `weights` are the a_i, uniform if left out."""
    here = matrix_of(matrix)
    (rounds, n), marginals = here.shape, here.mean(axis=0)
    t = np.arange(rounds)[:, None]
    last = np.maximum.accumulate(np.where(here, t, -1), axis=0)  # (rounds, n) when each was last there
    return Summary(
        rounds, n, marginals, spread(marginals), on=_counts(_stretches(here)), off=_counts(_stretches(~here)),
        mixing=_mixing(here), staleness=_counts((t - last)[last >= 0]), unseen=float((last < 0).mean()),
        longest_absence=(t - last).max(axis=0), least_rounds=over(1, float(marginals.min())),
        bias=total_variation(normalised(weights, n), plain_weights(here, weights)),
    )  # fmt: skip


def _counts(values: npt.NDArray[np.int64]) -> Counts:
    if len(values) == 0:
        return Counts(math.nan, np.full(5, math.nan), values)
    quantiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1], method="inverted_cdf").astype(np.float64)
    return Counts(float(values.mean()), quantiles, np.bincount(values))


def _stretches(here: Mask) -> npt.NDArray[np.int64]:
    """The lengths of all runs of True down the columns."""
    edges = np.diff(here.T.astype(np.int8), axis=1, prepend=0, append=0)  # (n, rounds + 1)
    return np.asarray(np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1])


def _mixing(here: Mask) -> Floats:
    now, then = here[:-1], here[1:]
    on, off = now.sum(axis=0), (~now).sum(axis=0)
    after = (now & then).sum(axis=0) / np.maximum(on, 1) - (~now & then).sum(axis=0) / np.maximum(off, 1)
    return np.where((on > 0) & (off > 0), after, 0.0)

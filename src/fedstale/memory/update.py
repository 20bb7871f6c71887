"""One pass over the rows of a round: it corrects the step and writes the new rows.

The loop runs over blocks that fit the cache. With numba, a compiled loop does the same operations in the
same order: the bits do not depend on whether it is installed.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedstale.core import Array, Floats, Ids, Mask
from fedstale.core.system import cores
from fedstale.engines.kernels import load
from fedstale.memory.codings import Codes, Coding, Float16, Float32, Int8, Keys

COMPILED = (Float32, Float16, Int8)  # codings that the compiled loop knows
BLOCK = 16384  # numbers at a time: an array of them fits the second-level cache several times
SHARE = 1 << 19  # numbers that are worth a thread of their own
WORTHWHILE = 1 << 16  # numbers in a round; for fewer, loading numba takes longer than it saves, unless it is loaded
LOADED = "fedstale.engines.kernels.rows"


class Passing(NamedTuple):
    """The m rows of a round and their coefficients: all that a pass needs besides the sums that it adds to."""

    codes: Codes  # (≥ m, d), changed in place
    places: Ids  # (m,) which of them
    updates: Array  # (m, d)
    arrived: Mask  # (m, d) or (m, 1)
    whole: Mask  # (m,) whether all of it arrived
    fresh: Array  # (m,)
    stale: Array  # (m,)
    gain: Array  # (m,)
    weights: Floats  # (m,)
    keys: Keys  # (m, 2)


class Measured(NamedTuple):
    """What a pass measures of the rows before they change, and the sum that it makes beside the step."""

    excess: Array  # (m,)
    centre: Array  # (d,)
    extra: Floats  # (d,) += Σ excess (Δ - stale·h); of no size if there is no excess
    dots: Floats  # (m,) ← ⟨Δ - centre, h - centre⟩
    squares: Floats  # (m,) ← ‖h - centre‖²

    def of(self, keep: slice | Mask) -> "Measured":
        """The part for some of the rows."""
        return Measured(self.excess[keep], self.centre, self.extra, self.dots[keep], self.squares[keep])


def update(
    coding: Coding, p: Passing, scales: Array, step: Floats, total: Floats, measured: Measured | None = None
) -> None:
    """step += Σ fresh (Δ - stale·h); h ← h + gain (Δ - h), coded; total += Σ weight · the change of h.

    All on the coordinates that arrived. `scales` (m,) are those of the old rows, and then of the new.
    """
    worthwhile = p.updates.size >= WORTHWHILE or LOADED in sys.modules
    compiled = load("rows", coding.dtype.__name__) if worthwhile and isinstance(coding, COMPILED) else None
    before, inverse = scales.copy(), np.ones_like(scales)
    with np.errstate(all="ignore"):  # a run that diverges shows in its step
        if coding.scaled:
            if compiled:
                largest = np.maximum.reduce(_shared(compiled.largest, p, before)).view(np.float32)
            else:
                largest = _largest(coding, p, before)
            scales[:], inverse[:] = coding.scales(largest)
        if compiled:
            blocks = -(-p.updates.shape[1] // compiled.BLOCK) if measured else 0
            dots = np.zeros((blocks, len(before), 2))
            more = measured[:3] if measured else (before, before, step)  # the latter are not read
            _shared(compiled.update, p, before, scales, inverse, step, total, *more, dots)
        else:
            dots = _update(coding, p, before, scales, inverse, step, total, measured)
    if measured:  # rounded, so that the order of the sums does not show
        measured.dots[:], measured.squares[:] = dots.sum(axis=0).astype(np.float32).T


def _largest(coding: Coding, p: Passing, before: Array) -> Array:
    """(m,) the largest magnitude of each new row."""
    largest, plain = np.zeros(len(before), np.float32), p.whole.all() and (p.gain == 1).all()
    for rows, columns in _blocks(*p.updates.shape):
        new = p.updates[rows, columns] if plain else _values(coding, p, before, rows, columns)[2]
        np.maximum(largest[rows], np.abs(new).max(axis=1), out=largest[rows])
    return largest


def _update(
    coding: Coding, p: Passing, before: Array, after: Array, inverse: Array, step: Floats, total: Floats,
    measured: Measured | None,
) -> Floats:  # fmt: skip
    """(1, m, 2) the dots and squares of each row, if anything is measured."""
    dots = np.zeros((1, len(before), 2))
    for rows, columns in _blocks(*p.updates.shape):
        old, Δ, new = _values(coding, p, before, rows, columns)
        rest = p.stale[rows, None] * old
        np.subtract(Δ, rest, out=rest)
        if not p.whole[rows].all():
            rest = np.where(_seen(p, rows, columns), rest, np.float32(0))
        correction = p.fresh[rows, None] * rest
        if measured:
            h = old - measured.centre[columns]
            if not p.whole[rows].all():
                h[~np.broadcast_to(_seen(p, rows, columns), h.shape)] = 0
            dots[0, rows, 0] += ((Δ - measured.centre[columns]) * h).sum(axis=1, dtype=np.float64)
            dots[0, rows, 1] += (h * h).sum(axis=1, dtype=np.float64)
            for line in measured.excess[rows, None] * rest if len(measured.extra) else ():
                measured.extra[columns] += line
        codes = coding.encode(new, inverse[rows, None], p.keys[rows], columns.start)
        change = coding.decode(codes, after[rows, None]).astype(np.float64)
        change -= old
        change *= p.weights[rows, None]
        p.codes[p.places[rows], columns] = codes
        for k in range(len(change)):  # row after row: the order in which the compiled loop adds
            step[columns] += correction[k]
            total[columns] += change[k]
    return dots


def _values(coding: Coding, p: Passing, before: Array, rows: slice, columns: slice) -> tuple[Array, Array, Array]:
    """The old rows, the updates (where nothing arrived, the old row) and what is to be written down."""
    old = coding.decode(p.codes[p.places[rows], columns], before[rows, None])
    Δ, gain = p.updates[rows, columns], p.gain[rows, None]
    if not p.whole[rows].all():
        Δ = np.where(_seen(p, rows, columns), Δ, old)
    if (gain == 1).all():
        return old, Δ, Δ
    new = Δ - old
    new *= gain
    new += old
    return old, Δ, np.where(gain == 1, Δ, new) if (gain == 1).any() else new


def _seen(p: Passing, rows: slice, columns: slice) -> Mask:
    return p.arrived[rows] if p.arrived.shape[1] == 1 else p.arrived[rows, columns]


def _blocks(m: int, d: int) -> Iterator[tuple[slice, slice]]:
    """Some rows of a small model, or a part of one row of a large one."""
    height, width = max(1, BLOCK // max(d, 1)), min(d, BLOCK)
    for row in range(0, m, height):
        for column in range(0, d, max(width, 1)):
            yield slice(row, min(row + height, m)), slice(column, min(column + width, d))


def _shared(loop: Callable[..., Any], p: Passing, *more: Any) -> list[Any]:
    """What the compiled loop returns for parts of the coordinates, each by a thread of its own.

    A coordinate is summed by one thread, in the order of the rows: the bits do not depend on the parts.
    """
    codes = p.codes.view(np.uint16) if p.codes.dtype == np.float16 else p.codes  # numba knows no float16
    m, d = p.updates.shape
    block = load("rows", p.codes.dtype.name).BLOCK
    parts, blocks = max(1, min(cores(), m * d // SHARE)), -(-d // block)
    cuts = [min(d, blocks * k // parts * block) for k in range(parts + 1)]
    if parts == 1:
        return [loop(codes, *p[1:], 0, d, *more)]
    with ThreadPoolExecutor(parts) as pool:
        return list(pool.map(lambda cut: loop(codes, *p[1:], *cut, *more), pairwise(cuts)))

"""The last update of every client, n × d, with its weighted sum kept as it changes.

One pass over the rows of a round corrects the step and writes the new rows, in blocks that fit the cache. With
numba, a compiled loop does the same operations in the same order: the bits are the same without it.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Floats, Ids, Mask, Round, Strategy, layers, on_host
from fedstale.core.system import cores
from fedstale.engines.kernels import load
from fedstale.memory.device import Device
from fedstale.memory.file import File
from fedstale.memory.rows import AtClients, Codes, Coding, Float16, Float32, Int8, Keys, OnDevice, Ram, keys

COMPILED = (Float32, Float16, Int8)  # codings that the compiled loop knows
BLOCK = 16384  # numbers at a time: an array of them fits the second-level cache several times
SHARE = 1 << 19  # numbers that are worth a thread of their own
WORTHWHILE = 1 << 16  # numbers in a round; for fewer, loading numba takes longer than it saves, unless it is loaded
LOADED = "fedstale.engines.kernels.rows"


@runtime_checkable
class KeepsMemory(Protocol):
    """A strategy with a memory of updates, in this coding."""

    @property
    def memory(self) -> Coding: ...


def at_clients(rule: Strategy) -> bool:
    """Whether the settings of a rule, or of one inside it, say that clients keep their memories."""
    return any(isinstance(layer, KeepsMemory) and isinstance(layer.memory, AtClients) for layer in layers(rule))


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


@dataclass
class Memory:
    """Rows h_i, zero before the first update, and Σ a_i h_i in float64.

    A write costs O(d), so a round costs O(m·d), never O(n·d). Rows and sum are those of the decoded values, so
    they always agree.
    """

    coding: Coding
    kept: Ram | File | Device  # the coded rows
    scales: Array  # (n,) of the rows
    written: Ids  # (n,) round of the last write, 0 before the first: staleness is t - written
    weights: Array  # (n,) the a_i that `total` was summed with
    total: Floats  # (d,)
    known: float | None = None  # Σ a_i of the rows that were written, while it is kept

    @classmethod
    def zeros(cls, n: int, d: int, coding: Coding = Float32()) -> "Memory":
        """A memory in which every row is zero."""
        kept: Ram | File | Device
        if isinstance(coding, OnDevice):
            kept = Device(coding.place, d)
        else:
            kept = Ram(n, d, coding.dtype) if coding.folder is None else File(coding.folder, n, d, coding.dtype)
        scales, weights = np.zeros((2, n), np.float32)
        memory = cls(coding, kept, scales, np.zeros(n, np.int64), weights, np.zeros(d))
        memory.total = memory.nothing()
        return memory

    def nothing(self) -> Floats:
        """(d,) zeros that rows can be added to."""
        return self.kept.zeros.copy() if isinstance(self.kept, Device) else np.zeros(len(self.total))

    def row(self, i: int) -> Array:
        """(d,) h_i, a copy."""
        return self.coding.decode(self.kept.read(i), self.scales[i]).copy()

    @property
    def rows(self) -> Array:
        """(n, d) all h_i, a copy: for memories that fit."""
        return np.stack([on_host(self.row(i)) for i in range(len(self.written))])

    def weighted_sum(self, weights: Array) -> Floats:
        """Σ a_i h_i; summed anew only if the weights are not those of the last call."""
        anew = isinstance(self.kept, Device) and self.kept.due()
        if anew or (weights is not self.weights and not np.array_equal(weights, self.weights)):
            self.total = self.nothing()
            for i in np.flatnonzero(self.written).tolist():
                self.total += float(weights[i]) * self.row(i).astype(np.float64)
            self.known = None
        self.weights = weights
        return self.total

    def known_weight(self, weights: Array) -> float:
        """Σ a_i of the rows that were written.

        It is kept as it changes if all a_i are multiples of 2⁻⁵², as float32 above 2⁻²⁹ is: float64 adds them
        exactly, so that the order does not show. Otherwise it is summed anew, in the order of the clients.
        """
        self.weighted_sum(weights)
        if self.known is not None:
            return self.known
        known, every = float(weights[self.written > 0].sum(dtype=np.float64)), weights.astype(np.float64)
        if (every >= 0).all() and every.sum() < 2 and not np.modf(every * 2.0**52)[0].any():
            self.known = known
        return known

    def correct(
        self, step: Floats, r: Round, *, fresh: npt.ArrayLike, stale: npt.ArrayLike, gain: npt.ArrayLike = 1
    ) -> None:
        """step += Σ_S fresh_i (Δ_i - stale_i h_i), and then `remember`, in one pass over the rows."""
        self._pass(step, r, fresh, stale, gain, None)

    def update_and_measure(
        self, step: Floats, r: Round, *, fresh: npt.ArrayLike, stale: npt.ArrayLike, gain: npt.ArrayLike,
        centre: Array, excess: npt.ArrayLike | None = None,
    ) -> Measured:  # fmt: skip
        """`correct`, and measure ⟨Δ_i - centre, h_i - centre⟩ and ‖h_i - centre‖² of the rows before they change.

        With an `excess`, also the sum Σ_S excess_i (Δ_i - stale_i h_i), as `extra`.
        """
        m, d = len(r.clients), 0 if excess is None else len(self.total)
        e = np.full(m, 0 if excess is None else excess, np.float32)
        measured = Measured(e, centre, np.zeros(d), np.zeros(m), np.zeros(m))
        self._pass(step, r, fresh, stale, gain, measured)
        return measured

    def _pass(
        self, step: Floats, r: Round, fresh: npt.ArrayLike, stale: npt.ArrayLike, gain: npt.ArrayLike,
        measured: Measured | None,
    ) -> None:  # fmt: skip
        """Update the rows that anything arrived for."""
        self.weighted_sum(r.weights)
        heard = np.asarray(r.arrived.any(axis=1))
        all_heard = bool(heard.all())
        keep = slice(None) if all_heard else heard
        clients, arrived = r.clients[keep], np.ascontiguousarray(r.arrived[keep])
        if len(clients) == 0:
            return
        codes, places = self.kept.take(clients)
        c, β, g = (np.full(len(heard), x, np.float32)[keep] for x in (fresh, stale, gain))
        rows = r.updates[keep]
        rows = rows if isinstance(self.kept, Device) else np.ascontiguousarray(rows, np.float32)
        passing = Passing(
            codes, places, rows, arrived, np.asarray(arrived.all(axis=1)), c, β, g,
            self.weights[clients].astype(np.float64), keys(clients, r.t),
        )  # fmt: skip
        scales, part = self.scales[clients], measured if measured is None or all_heard else measured.of(keep)
        update(self.coding, passing, scales, step, self.total, part)
        if measured and part and part is not measured:
            measured.dots[keep], measured.squares[keep] = part.dots, part.squares
        self.kept.put(clients, codes)
        if self.known is not None:
            self.known += float(self.weights[clients[self.written[clients] == 0]].sum(dtype=np.float64))
        self.scales[clients], self.written[clients] = scales, r.t

    def remember(self, r: Round, *, gain: npt.ArrayLike = 1) -> None:
        """h_i ← h_i + gain_i (Δ_i - h_i) for i in S, on the coordinates that arrived."""
        self.correct(self.nothing(), r, fresh=0, stale=0, gain=gain)

    def write(self, i: int, value: Array, arrived: Mask, t: int) -> None:
        """h_i ← value, on the coordinates that arrived."""
        none = np.zeros(0, np.float32)
        self.remember(Round(t, none, np.array([i]), value[None], arrived[None], none, self.weights, none))

    def forget(self, clients: Ids) -> "Memory":
        """h_i ← 0, as before the first update, for these clients; the sum stays that of the rows."""
        nothing = np.zeros(len(self.total), np.float32)
        for i in clients[self.written[clients] > 0].tolist():
            self.write(i, nothing, np.ones(1, np.bool_), 0)
        self.known = None
        return self

    def saved(self) -> dict[str, Any]:
        """What a checkpoint holds: the rows in RAM, or where they are in their file."""
        names = ("scales", "written", "weights", "total")
        return {name: getattr(self, name) for name in names} | {"rows": self.kept.saved()}

    def restored(self, saved: dict[str, Any]) -> "Memory":
        """The memory that was saved, with the settings of this one."""
        plain = {name: value for name, value in saved.items() if name != "rows"}
        return replace(self, kept=self.kept.restored(saved["rows"]), known=None, **plain)


def latest(memory: Memory | None, r: Round) -> Floats:
    """(k, d) the updates of this round, nan where nothing arrived; with a memory, of everybody heard so far."""
    if memory is None:
        return np.where(r.arrived, r.updates, np.nan).astype(np.float64)
    memory.remember(r)
    return memory.rows[memory.written > 0].astype(np.float64)


def update(
    coding: Coding, p: Passing, scales: Array, step: Floats, total: Floats, measured: Measured | None = None
) -> None:
    """step += Σ fresh (Δ - stale·h); h ← h + gain (Δ - h), coded; total += Σ weight · the change of h.

    All on the coordinates that arrived. `scales` (m,) are those of the old rows, and then of the new.
    """
    if isinstance(coding, OnDevice):
        return _update_on_device(coding.place, p, step, total, measured)
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


def _update_on_device(place: Any, p: Passing, step: Any, total: Any, measured: Measured | None) -> None:
    """The same in float32, row after row, where the rows are."""
    updates, centre = place.there(p.updates), place.there(measured.centre) if measured else 0
    pair, dots = updates.new_empty(2, updates.shape[1]), updates.new_empty(len(updates), 2)
    numbers = zip(*(x.tolist() for x in (p.fresh, p.stale, p.gain, p.weights)), strict=True)
    for k, (Δ, h, (fresh, stale, gain, weight)) in enumerate(zip(updates, p.codes, numbers, strict=True)):
        if measured:  # both sums at once: the bits of a single one would depend on the number of threads
            pair[0], pair[1] = Δ - centre, h - centre
            dots[k] = (pair * pair[1]).sum(dim=1)
        step.tensor.add_(Δ.sub(h, alpha=stale), alpha=fresh)
        new = Δ if gain == 1 else (Δ - h) * gain + h
        total.tensor.add_(new - h, alpha=weight)
        h.copy_(new)
    if measured:
        measured.dots[:], measured.squares[:] = dots.cpu().numpy().T


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

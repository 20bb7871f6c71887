"""The last update of every client, n × d, with its weighted sum kept as it changes."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedstale.core import Array, Floats, Ids, Mask, Round
from fedstale.memory.codings import Coding, Float32, keys
from fedstale.memory.file import File
from fedstale.memory.ram import Ram
from fedstale.memory.update import Measured, Passing, update


@runtime_checkable
class KeepsMemory(Protocol):
    """A strategy with a memory of updates, in this coding."""

    @property
    def memory(self) -> Coding: ...


@dataclass
class Memory:
    """Rows h_i, zero before the first update, and Σ a_i h_i in float64.

    A write costs O(d), so a round costs O(m·d), never O(n·d). Rows and sum are those of the decoded values, so
    they always agree.
    """

    coding: Coding
    kept: Ram | File  # the coded rows
    scales: Array  # (n,) of the rows
    written: Ids  # (n,) round of the last write, 0 before the first: staleness is t - written
    weights: Array  # (n,) the a_i that `total` was summed with
    total: Floats  # (d,)
    known: float | None = None  # Σ a_i of the rows that were written, while it is kept

    @classmethod
    def zeros(cls, n: int, d: int, coding: Coding = Float32()) -> "Memory":
        """A memory in which every row is zero."""
        kept = Ram(n, d, coding.dtype) if coding.folder is None else File(coding.folder, n, d, coding.dtype)
        scales, weights = np.zeros((2, n), np.float32)
        return cls(coding, kept, scales, np.zeros(n, np.int64), weights, np.zeros(d))

    def row(self, i: int) -> Array:
        """(d,) h_i, a copy."""
        return self.coding.decode(self.kept.read(i), self.scales[i]).copy()

    @property
    def rows(self) -> Array:
        """(n, d) all h_i, a copy: for memories that fit."""
        return np.stack([self.row(i) for i in range(len(self.written))])

    def weighted_sum(self, weights: Array) -> Floats:
        """Σ a_i h_i; summed anew only if the weights are not those of the last call."""
        if weights is not self.weights and not np.array_equal(weights, self.weights):
            self.total[:] = 0
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
        passing = Passing(
            codes, places, np.ascontiguousarray(r.updates[keep], np.float32),
            arrived, np.asarray(arrived.all(axis=1)), c, β, g,
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
        self.correct(np.zeros(len(self.total)), r, fresh=0, stale=0, gain=gain)

    def write(self, i: int, value: Array, arrived: Mask, t: int) -> None:
        """h_i ← value, on the coordinates that arrived."""
        none = np.zeros(0, np.float32)
        self.remember(Round(t, none, np.array([i]), value[None], arrived[None], none, self.weights, none))

    def forget(self, clients: Ids) -> None:
        """h_i ← 0, as before the first update, for these clients; the sum stays that of the rows."""
        nothing = np.zeros(len(self.total), np.float32)
        for i in clients[self.written[clients] > 0].tolist():
            self.write(i, nothing, np.ones(1, np.bool_), 0)
        self.known = None

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

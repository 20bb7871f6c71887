"""FedStale that tunes itself: clients that are there count for themselves, and absent ones are predicted.

    step = Σ_S a_i Δ_i + Σ_{i ∉ S} a_i g_i + f Σ_S o_i (Δ_i - g_i)

A client is predicted by its memory, shrunk towards the last step m: g_i = m + β (h_i - m), and g_i = m before it
was heard. The last sum corrects the predictions of absent clients by the errors of those that are there. A client
that comes with probability p_i misses (1 - p_i) / p_i rounds for each that it attends, so it stands for
o_i = a_i (1 / p_i - 1) of the absent. See docs/auto.md.
"""

from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from fedstale.core import Array, Floats, Ids, Mask, Message, Order, PositiveShare, Round, Share, Total, part
from fedstale.memory import Coding, Float32, Memory

PRIOR = 0.5  # β before a client comes again
WINDOW = 8  # so many rounds are remembered by β, if those that came again stand for all the absent
DOUBT = 2.0  # with so many clients, half of the correction is believed


class Tuned(NamedTuple):
    """The state of the rule."""

    memory: Memory | None  # None if the clients keep it
    counts: Ids  # (n,) updates received from each client
    centre: Array  # (d,) m, the last step
    rounds: int = 0
    heard: float = 0.0  # Σ over the rounds of the weight that was heard, Σ_S a_i
    beta: float = PRIOR
    dots: float = 0.0  # Σ o_i² ⟨Δ_i - m, h_i - m⟩, discounted
    squares: float = 0.0  # Σ o_i² ‖h_i - m‖², discounted


class Weighed(NamedTuple):
    """The weights of a round; (m,) a client, and (1,) or (d,) of all that arrived."""

    a: Floats
    o: Floats  # of how much of the absent it stands for
    seen: Mask  # whether it was heard before
    here: Floats  # Σ_S a_i
    f: Floats
    left: Floats  # how much of m is in the g_i


@part
class SelfTuning:
    """FedStale without a setting that needs tuning; its defaults are the recipe `auto`.

    The memory is a mean, h_i ← h_i + max(1 / times seen, gain)(Δ_i - h_i). β is the coefficient with which memories
    have predicted updates best so far; `beta` fixes it in [0, 1]. Where nobody is heard there is no step.
    `unbiased` takes p_i as it is, with f = 1 and m = 0: no bias if p_i is exact, and more noise.
    """

    gain: PositiveShare = 0.3
    unbiased: bool = False
    beta: Share | None = None
    memory: Coding = Float32()
    inverse_weighting: ClassVar[bool] = True

    def init(self, n: int, d: int) -> Tuned:
        memory = Memory.zeros(n, d, self.memory)
        return self.opened(n, d)._replace(memory=memory, centre=memory.nothing().astype(np.float32))

    def opened(self, n: int, d: int) -> Tuned:
        start = Tuned(None, np.zeros(n, np.int64), np.zeros(d, np.float32))
        return start if self.beta is None else start._replace(beta=float(self.beta))

    def aggregate(self, state: Tuned, r: Round) -> tuple[Array, Tuned]:
        memory, β, w = state.memory, state.beta, self._weighed(state, r)
        assert memory is not None
        step, cut = β * memory.weighted_sum(r.weights), len(w.f) > 1  # (d,) in float64: β Σ_i a_i h_i
        sums = memory.update_and_measure(  # step += Σ_S (a_i + f o_i)(Δ_i - β h_i), in two parts if f is (d,)
            step, r, fresh=w.a if cut else w.a + w.f * w.o, excess=w.o if cut else None, stale=β,
            centre=state.centre, gain=np.maximum(1 / (state.counts[r.clients] + 1), self.gain),
        )  # fmt: skip
        if cut:
            step += w.f * sums.extra
        ω = (w.o * w.seen) ** 2
        return self._closed(step, state, r, w, float(ω @ sums.dots), float(ω @ sums.squares))

    def orders(self, state: Tuned, r: Round) -> list[Order]:
        a, c = r.weights[r.clients].astype(np.float64), self._inverse(state, r)
        ratio, visits = np.divide(c, a, out=np.ones_like(c), where=a > 0), state.counts[r.clients]
        told = zip(a.tolist(), ratio.tolist(), visits.tolist(), strict=True)
        return [Order(weight, share, state.beta, seen, state.centre) for weight, share, seen in told]

    def message(self, h: Array, update: Array, order: Order) -> Message:
        rest = update - order.beta * h.astype(np.float64)
        o = order.weight * (order.inverse - 1) if order.inverse > 1 + 1e-6 else 0.0
        gain = np.float32(max(1 / (order.visits + 1), self.gain))
        new = update if gain == 1 else ((update - h) * gain + h)
        old = h.astype(np.float64) - (0 if order.centre is None else order.centre)
        fresh = update.astype(np.float64) - (0 if order.centre is None else order.centre)
        numbers = o**2 * (order.visits > 0) * np.array([np.sum(fresh * old), np.sum(old * old)])
        return Message(np.concatenate([order.weight * rest, o * rest]), new, numbers)

    def close(self, state: Tuned, total: Total, r: Round) -> tuple[Array, Tuned]:
        w, (known, excess) = self._weighed(state, r), np.split(total.sums, 2)
        step = state.beta * total.stale + known + w.f * excess
        return self._closed(step, state, r, w, *total.numbers.tolist())

    def _weighed(self, state: Tuned, r: Round) -> "Weighed":
        """The weights of the clients in a round, and f."""
        a, seen = r.weights[r.clients].astype(np.float64), state.counts[r.clients] > 0  # (m,)
        of = partial(np.einsum, "ij,i->j", r.arrived.astype(np.float64))  # Σ_S where it arrived: (1,) or (d,)
        if state.memory is None:
            known = float(r.weights[state.counts > 0].sum(dtype=np.float64))  # Σ_seen a_i
        else:
            known = state.memory.known_weight(r.weights)
        here = of(a)  # Σ_S a_i
        c = self._inverse(state, r)
        o = np.where(c > (1 + 1e-6) * a, c - a, 0.0)  # 1 / p_i is at least 1, up to rounding
        f = np.ones(1) if self.unbiased else self._factor(of(o), of(o**2), np.maximum(1 - here, 0), known > 0)
        β = state.beta
        left = 1 - β * known - of(a * (1 - β * seen)) - f * of(o * (1 - β * seen))
        return Weighed(a, o, seen, here, f, left)

    def _closed(
        self, step: Floats, state: Tuned, r: Round, w: "Weighed", dot: float, square: float
    ) -> tuple[Array, Tuned]:
        """The step, which is 0 where nothing was heard, and the state with it as m."""
        if not self.unbiased:  # the rest of the g_i, which is a multiple of m
            step += w.left.astype(np.float32) * state.centre
        state.counts[r.clients] += r.arrived.any(axis=1)
        state = state._replace(rounds=state.rounds + 1, heard=state.heard + float(w.here.mean()))
        state, out, heard = self._learned(state, w.o * w.seen, dot, square), step.astype(np.float32), w.here > 0
        if self.unbiased:
            return out, state
        if heard.all():
            return out, state._replace(centre=out)
        if not heard.any():
            return np.zeros_like(r.params), state
        return np.where(heard, out, np.float32(0)), state._replace(centre=np.where(heard, out, state.centre))

    def forget(self, state: Tuned, clients: Ids) -> Tuned:
        if state.memory is not None:
            state.memory.forget(clients)
        state.counts[clients] = 0
        return state

    def _inverse(self, state: Tuned, r: Round) -> Floats:
        """(m,) a_i / p_i, with 1 / p_i shrunk towards that of the mean rate so far, which counts as one visit."""
        c, visits = r.inverse(), state.counts[r.clients]
        if self.unbiased:
            return c
        mean = state.rounds / state.heard if state.heard > 0 else 2.0  # at first all are alike, whatever it is
        return (mean * r.weights[r.clients] + visits * c) / (1 + visits)

    def _factor(self, total: Floats, squares: Floats, absent: Floats, remembered: bool) -> Floats:
        """f, from Σ_S o_i, Σ_S o_i² and Σ_{i ∉ S} a_i: those who are there never stand for more than is absent.

        Nor is one client believed like many: K = (Σ o)² / Σ o² of them are believed by K / (K + 2). While nothing
        is remembered they do stand for all that is absent: nothing else is known of it.
        """
        safe = np.where(total > 0, total, 1.0)  # where it is 0, so is all that f multiplies
        f = absent / safe
        return np.minimum(f, 1) * total**2 / (safe**2 + DOUBT * squares) if remembered else f

    def _learned(self, state: Tuned, o: Floats, dot: float, square: float) -> Tuned:
        """With β from the clients that came again: least Σ o_i² ‖Δ_i - m - β (h_i - m)‖²."""
        fade = 1 - min(float(o.sum()), 1.0) / WINDOW
        dots, squares = fade * state.dots + dot, fade * state.squares + square
        if self.beta is not None or squares <= 0:
            return state
        return state._replace(beta=min(max(dots / squares, 0.0), 1.0), dots=dots, squares=squares)

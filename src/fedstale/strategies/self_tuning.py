"""Self-tuning FedStale: β learned online, an averaged memory, and a clipped correction with error feedback.

For a β that is fixed before the participants are drawn, FedStale's step is unbiased with a variance of
Σ_i a_i² (1 - p_i) / p_i ‖Δ_i - β h_i‖². The memory h_i is a control variate for Δ_i: the variance is least for

    β* = Σ_i ω_i ⟨Δ_i, h_i⟩ / Σ_i ω_i ‖h_i‖².

The participants estimate both sums without bias if ω_i = a_i² (1 - p_i) / p_i²: once for the variance that client i
causes, and divided by p_i once more because it is seen so rarely. See docs/auto.md.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from fedstale.core import Array, Floats, Ids, Round, part, require
from fedstale.memory import Coding, Float32, Memory
from fedstale.memory.update import Measured

ALWAYS = 0.999  # a client with such a p_i causes no variance worth correcting
PRIOR, PRIOR_EVENTS = 0.5, 10  # the first guess of β fades over so many events


class Coefficient(NamedTuple):
    """The β of the next round, and the discounted sums that it is the ratio of."""

    beta: float = PRIOR
    dots: float = 0.0  # Σ ω_i ⟨Δ_i, h_i⟩
    squares: float = 0.0  # Σ ω_i ‖h_i‖²
    events: float = 0.0  # clients that took part again: a first update meets the zero that its memory began with
    all_events: int = 0  # not discounted

    def after(self, r: Round, counts: Ids, dots: Floats, squares: Floats) -> "Coefficient":
        """With a round's ⟨Δ_i, h_i⟩ and ‖h_i‖² (m,), of clients that took part `counts` (n,) times before."""
        p, a = r.probs[r.clients].astype(np.float64), len(r.weights) * r.weights[r.clients].astype(np.float64)
        again = (p < ALWAYS) & (counts[r.clients] > 0)  # (m,)
        if not again.any():
            return self
        ω = np.where(again, a**2 * (1 - p) / p**2, 0.0)  # times N², which the ratio does not see
        new, window = int(np.count_nonzero(again)), min(8, 3 * int(np.count_nonzero(r.probs < ALWAYS)))
        λ = (1 - 1 / window) ** new  # the sums remember about `window` events
        dot, square = λ * self.dots + float(ω @ dots), λ * self.squares + float(ω @ squares)
        events, all_events = λ * self.events + new, self.all_events + new
        prior, β = max(0.0, 1 - all_events / PRIOR_EVENTS), dot / square if square > 0 else PRIOR
        β = (events * β + prior * PRIOR) / (events + prior)
        return Coefficient(min(max(β, 0.0), 1.0), dot, square, events, all_events)


class Tuned(NamedTuple):
    """The state of the rule."""

    memory: Memory
    counts: Ids  # (n,) updates received from each client
    coefficient: Coefficient
    residual: Array  # (d,) what is left of what the clip cut; of size 0 if there is no clip or no error feedback

    @property
    def beta(self) -> float:
        return self.coefficient.beta


@part
class SelfTuning:
    """FedStale with the β of the least variance, learned online; its defaults are the recipe `auto`.

    The memory is a mean, h_i ← h_i + max(1 / times seen, gain)(Δ_i - h_i). A `clip` bounds the norm of what
    the 1/p_i add, C = Σ_S a_i (1/p_i - 1)(Δ_i - β h_i), to `clip` times that of the rest: steadier, and a
    little biased. Error feedback reduces the bias: `residual_decay` times what was cut is added to the next
    round's C. With `clip = None` the rule is unbiased. `beta` fixes β in [0, 1] instead of learning it.
    """

    gain: float = 0.3
    clip: float | None = 1.0
    residual_decay: float = 0.5
    beta: float | None = None
    memory: Coding = Float32()
    inverse_weighting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 < self.gain <= 1, f"gain must be in (0, 1], got {self.gain}")
        require(self.clip is None or self.clip > 0, f"clip must be above 0 or None, got {self.clip}")
        require(0 <= self.residual_decay <= 1, f"residual_decay must be in [0, 1], got {self.residual_decay}")
        require(self.beta is None or 0 <= self.beta <= 1, f"beta must be in [0, 1] or None, got {self.beta}")

    def init(self, n: int, d: int) -> Tuned:
        start = Coefficient() if self.beta is None else Coefficient(float(self.beta))
        kept = d if self.clip is not None and self.residual_decay else 0
        return Tuned(Memory.zeros(n, d, self.memory), np.zeros(n, np.int64), start, np.zeros(kept, np.float32))

    def aggregate(self, state: Tuned, r: Round) -> tuple[Array, Tuned]:
        memory, counts, coefficient, residual = state
        β, a, c = coefficient.beta, r.weights[r.clients].astype(np.float64), r.inverse()  # (m,) c_i = a_i / p_i
        fresh, excess = (c, None) if self.clip is None else (a, c - a)
        step = β * memory.weighted_sum(r.weights)  # (d,) in float64: β Σ_i a_i h_i
        m = memory.update_and_measure(  # step += Σ_S fresh_i (Δ_i - β h_i), C = residual + Σ_S excess_i (…)
            step, r, fresh=fresh, stale=β, gain=np.maximum(1 / (counts[r.clients] + 1), self.gain), excess=excess,
            residual=residual if residual.size else None,
        )  # fmt: skip
        out, residual = self._clipped(step, m, residual)
        if self.beta is None:
            coefficient = coefficient.after(r, counts, m.dots, m.squares)  # used from the next round on
        counts[r.clients] += 1
        return out, Tuned(memory, counts, coefficient, residual)

    def forget(self, state: Tuned, clients: Ids) -> Tuned:
        state.memory.forget(clients)
        state.counts[clients] = 0
        return state

    def _clipped(self, step: Floats, m: Measured, residual: Array) -> tuple[Array, Array]:
        """The step plus the clipped C, and the residual of the next round."""
        out, (norm, added) = step.astype(np.float32), m.norms
        if self.clip is None:
            return out, residual
        share = np.float32(min(1.0, self.clip * norm / added) if added > 0 else 1.0)
        out += share * m.extra
        return out, np.float32(self.residual_decay) * (1 - share) * m.extra if residual.size else residual
